# kind: a latent code and its Adam state made for each shape when it is first seen; from DeepSDF-like auto-decoders
import torch
import torch.nn as nn


class AutoDecoder(nn.Module):
    def __init__(self, latent=(32, 32, 32), hidden=64):
        super().__init__()
        self.latent = latent
        self.codes = nn.ParameterDict()
        self.net = nn.Sequential(nn.Linear(latent[0] + 2, hidden), nn.Softplus(), nn.Linear(hidden, hidden),
                                 nn.Softplus(), nn.Linear(hidden, 1))

    def has(self, name):
        return name in self.codes

    def create(self, name):
        p = nn.Parameter(0.01 * torch.randn(1, *self.latent, device=self.net[0].weight.device))
        self.codes[name] = p
        return p

    def forward(self, name, xy):
        plane = self.codes[name]
        cell = ((xy + 1) / 2 * (plane.size(-1) - 1)).round().long()
        f = plane[0, :, cell[:, 1], cell[:, 0]].T
        return self.net(torch.cat([f, xy], dim=1)).squeeze(-1)


class Shapes:
    def __init__(self, n):
        self.radii = torch.linspace(0.2, 0.9, n)

    def __iter__(self):
        for i in torch.randperm(len(self.radii)).tolist():
            xy = torch.rand(256, 2) * 2 - 1
            yield f"shape_{i:03d}", xy, xy.norm(dim=1) - self.radii[i]


def fit(epochs=4, n_shapes=40):
    device = "cuda"
    model = AutoDecoder().to(device)
    opt = torch.optim.Adam(model.net.parameters(), lr=2e-3)
    for epoch in range(epochs):
        tot = 0.0
        for name, xy, sdf in Shapes(n_shapes):
            if not model.has(name):
                opt.add_param_group({"params": [model.create(name)], "lr": 1e-2})
            xy, sdf = xy.to(device), sdf.to(device)
            pred = model(name, xy)
            loss = (pred - sdf).abs().mean() + 1e-4 * model.codes[name].pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item()
        print(f"epoch {epoch}: {tot / n_shapes:.4f}, codes {len(model.codes)}")


if __name__ == "__main__":
    fit()
