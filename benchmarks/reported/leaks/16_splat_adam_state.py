# kind: parameters replaced in an optimizer group, the old parameter's Adam state stays; every 10th step; from gaussian splatting repositories
import torch
from torch import nn


class GaussianModel:
    def __init__(self, n=2048, feat=64, device="cuda"):
        self.device = device
        self.xyz = nn.Parameter(torch.randn(n, 3, device=device))
        self.features = nn.Parameter(torch.randn(n, feat, device=device) * 0.1)
        self.optimizer = torch.optim.Adam([
            {"params": [self.xyz], "lr": 1e-3, "name": "xyz"},
            {"params": [self.features], "lr": 2e-3, "name": "features"},
        ])

    def render(self, rays):
        d = torch.cdist(rays, self.xyz)
        w = torch.softmax(-4 * d, dim=-1)
        return w @ self.features

    def replace_tensor_to_optimizer(self, tensor, name):
        for group in self.optimizer.param_groups:
            if group["name"] != name:
                continue
            stored = self.optimizer.state.get(group["params"][0])
            group["params"][0] = nn.Parameter(tensor)  # LEAK
            if stored is not None:
                self.optimizer.state[group["params"][0]] = {  # ALSO
                    "step": stored["step"],
                    "exp_avg": torch.zeros_like(tensor),
                    "exp_avg_sq": torch.zeros_like(tensor),
                }
            return group["params"][0]

    @torch.no_grad()
    def densify_and_prune(self):
        """Split the strongest points into the places of the weakest; the number stays the same."""
        strength = self.features.norm(dim=1)
        k = strength.numel() // 16
        best, worst = strength.topk(k).indices, (-strength).topk(k).indices
        xyz, feats = self.xyz.clone(), self.features.clone()
        xyz[worst] = xyz[best] + 0.01 * torch.randn(k, 3, device=self.device)
        feats[worst] = feats[best]
        return xyz, feats

    def adapt(self):
        xyz, feats = self.densify_and_prune()
        self.xyz = self.replace_tensor_to_optimizer(xyz, "xyz")
        self.features = self.replace_tensor_to_optimizer(feats, "features")


def training(iterations=220):
    g = GaussianModel()
    basis = torch.randn(3, 64, device="cuda")
    for it in range(1, iterations + 1):
        rays = torch.randn(64, 3, device="cuda")
        gt = torch.tanh(rays @ basis)
        loss = (g.render(rays) - gt).abs().mean()
        loss.backward()
        g.optimizer.step()
        g.optimizer.zero_grad(set_to_none=True)
        if it % 10 == 0:
            g.adapt()
        if it % 50 == 0:
            print(it, f"{loss.item():.4f}", tuple(g.xyz.shape))


training()
