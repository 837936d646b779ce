# kind: points are cloned and split until an iteration, then their number stays; after autonomousvision/gaussian-opacity-fields issue 85
import torch
import torch.nn as nn


class GaussianModel:
    def __init__(self, n, device):
        self._xyz = nn.Parameter(torch.rand(n, 3, device=device))
        self._features = nn.Parameter(torch.rand(n, 48, device=device))
        self._scaling = nn.Parameter(torch.full((n, 3), -3.0, device=device))
        self._opacity = nn.Parameter(torch.zeros(n, 1, device=device))
        groups = [{"params": [getattr(self, "_" + k)], "lr": 1e-3, "name": k}
                  for k in ("xyz", "features", "scaling", "opacity")]
        self.optimizer = torch.optim.Adam(groups, lr=0.0, eps=1e-15)
        self.reset_stats()

    def reset_stats(self):
        n = self._xyz.shape[0]
        self.xyz_gradient_accum = torch.zeros((n, 1), device=self._xyz.device)
        self.xyz_gradient_accum_abs = torch.zeros((n, 1), device=self._xyz.device)
        self.denom = torch.zeros((n, 1), device=self._xyz.device)

    def cat_tensors_to_optimizer(self, tensors_dict):
        for group in self.optimizer.param_groups:
            old = group["params"][0]
            ext = tensors_dict[group["name"]]
            stored_state = self.optimizer.state.get(old, None)
            new = nn.Parameter(torch.cat((old, ext), dim=0).detach().requires_grad_(True))
            if stored_state is not None:
                for key in ("exp_avg", "exp_avg_sq"):
                    stored_state[key] = torch.cat((stored_state[key], torch.zeros_like(ext)), dim=0)
                del self.optimizer.state[old]
                self.optimizer.state[new] = stored_state
            group["params"][0] = new
            setattr(self, "_" + group["name"], new)

    def add_densification_stats(self):
        g = self._xyz.grad
        self.xyz_gradient_accum += g[:, :2].norm(dim=-1, keepdim=True)
        self.xyz_gradient_accum_abs += g.abs().sum(-1, keepdim=True)
        self.denom += 1

    @torch.no_grad()
    def densify(self, ratio):
        grads = (self.xyz_gradient_accum / self.denom).squeeze(1)
        k = int(ratio * grads.shape[0])
        sel = torch.topk(grads, k).indices
        self.cat_tensors_to_optimizer({
            "xyz": self._xyz[sel] + 0.01 * torch.randn(k, 3, device=grads.device),
            "features": self._features[sel], "scaling": self._scaling[sel] - 0.47,
            "opacity": self._opacity[sel]})
        self.reset_stats()

    def render(self, cam):
        pts = (self._xyz @ cam[:3]) * torch.exp(self._scaling).mean(-1, keepdim=True)
        w = torch.sigmoid(self._opacity)
        return (w * self._features[:, :3] * torch.tanh(pts)).mean(0), (w * self._features).mean()


def training(iterations=150, densify_from=10, densify_until=75, interval=10):
    torch.manual_seed(0)
    device = torch.device("cuda")
    gaussians = GaussianModel(6000, device)
    for it in range(1, iterations + 1):
        cam = torch.randn(4, 3).to(device)
        gt = torch.rand(3).to(device)
        image, reg = gaussians.render(cam)
        loss = (image - gt).abs().mean() + 0.01 * reg
        loss.backward()
        with torch.no_grad():
            if it < densify_until:
                gaussians.add_densification_stats()
        gaussians.optimizer.step()
        gaussians.optimizer.zero_grad(set_to_none=True)
        if densify_from <= it < densify_until and it % interval == 0:
            gaussians.densify(ratio=0.25)
        if it % 50 == 0:
            print(it, loss.item(), gaussians._xyz.shape[0])


if __name__ == "__main__":
    training()
