# kind: innocent, SWAG keeps at most 20 columns of the deviation matrix; from wjmaddox/swa_gaussian
import torch
import torch.nn as nn
import torch.nn.functional as F


class SWAG:
    def __init__(self, base, max_num_models=20, var_clamp=1e-30):
        self.base = base
        self.max_num_models, self.var_clamp = max_num_models, var_clamp
        self.n_models = 0
        vec = nn.utils.parameters_to_vector(base.parameters()).detach()
        self.mean = torch.zeros_like(vec)
        self.sq_mean = torch.zeros_like(vec)
        self.cov_mat_sqrt = vec.new_empty((0, vec.numel()))

    @torch.no_grad()
    def collect_model(self):
        w = nn.utils.parameters_to_vector(self.base.parameters())
        n = self.n_models
        self.mean = self.mean * n / (n + 1) + w / (n + 1)
        self.sq_mean = self.sq_mean * n / (n + 1) + w ** 2 / (n + 1)
        self.cov_mat_sqrt = torch.cat((self.cov_mat_sqrt, (w - self.mean).view(1, -1)), dim=0)
        if self.cov_mat_sqrt.size(0) > self.max_num_models:
            self.cov_mat_sqrt = self.cov_mat_sqrt[1:, :].clone()
        self.n_models += 1

    @torch.no_grad()
    def sample(self, scale=0.5):
        var = torch.clamp(self.sq_mean - self.mean ** 2, self.var_clamp)
        w = self.mean + (scale / 2) ** 0.5 * var.sqrt() * torch.randn_like(var)
        k = self.cov_mat_sqrt.size(0)
        w = w + (scale / (2 * (k - 1))) ** 0.5 * (torch.randn(k, device=w.device) @ self.cov_mat_sqrt)
        nn.utils.vector_to_parameters(w, self.base.parameters())


def regression_data(n):
    x = torch.rand(n, 8, device="cuda") * 4 - 2
    return x, torch.sin(x.sum(1, keepdim=True)) + 0.1 * torch.randn(n, 1, device="cuda")


def main(iters=240, collect_every=4):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 176), nn.ReLU(), nn.Linear(176, 176), nn.ReLU(), nn.Linear(176, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    swag = SWAG(model)
    for it in range(iters):
        x, y = regression_data(128)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if it % collect_every == 0:
            swag.collect_model()
        if it % 60 == 0:
            print(f"iter {it} loss {loss.item():.4f} rank {len(swag.cov_mat_sqrt)}")
    x, y = regression_data(256)
    preds = []
    for _ in range(5):
        swag.sample()
        with torch.no_grad():
            preds.append(model(x))
    preds = torch.stack(preds)
    print("predictive std %.4f mse %.4f" % (preds.std(0).mean().item(), F.mse_loss(preds.mean(0), y).item()))


if __name__ == "__main__":
    main()
