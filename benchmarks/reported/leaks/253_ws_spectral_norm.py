# kind: power-iteration vector of a weight-standardised spectral-norm conv is stored with its graph, so every forward leaves its standardised weight behind; in the manner of pytorch issue 7261
import torch
import torch.nn as nn
import torch.nn.functional as F


class SNConv2d(nn.Conv2d):
    """Conv with weight standardisation followed by spectral normalisation."""

    def __init__(self, *args, n_power_iterations=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.n_power_iterations = n_power_iterations
        self.register_buffer("u", F.normalize(torch.randn(self.out_channels), dim=0))

    def compute_weight(self):
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        std = self.weight.std(dim=(1, 2, 3), keepdim=True) + 1e-5
        w = (self.weight - mean) / std
        mat = w.flatten(1)
        for _ in range(self.n_power_iterations):
            v = F.normalize(mat.t() @ self.u, dim=0)  # ALSO
            self.u = F.normalize(mat @ v, dim=0)  # LEAK
        sigma = torch.dot(self.u.detach(), mat @ v.detach())
        return w / sigma

    def forward(self, x):
        return F.conv2d(x, self.compute_weight(), self.bias, self.stride, self.padding)


class Discriminator(nn.Module):
    def __init__(self, ch=32):
        super().__init__()
        self.net = nn.Sequential(
            SNConv2d(3, ch, 4, 2, 1), nn.LeakyReLU(0.2),
            SNConv2d(ch, ch * 2, 4, 2, 1), nn.LeakyReLU(0.2),
            SNConv2d(ch * 2, ch * 4, 4, 2, 1), nn.LeakyReLU(0.2),
        )
        self.fc = nn.Linear(ch * 4 * 4 * 4, 1)

    def forward(self, x):
        return self.fc(self.net(x).flatten(1))


class Generator(nn.Module):
    def __init__(self, z_dim=64, ch=32):
        super().__init__()
        self.fc = nn.Linear(z_dim, ch * 4 * 4 * 4)
        self.net = nn.Sequential(
            nn.ConvTranspose2d(ch * 4, ch * 2, 4, 2, 1), nn.BatchNorm2d(ch * 2), nn.ReLU(),
            nn.ConvTranspose2d(ch * 2, ch, 4, 2, 1), nn.BatchNorm2d(ch), nn.ReLU(),
            nn.ConvTranspose2d(ch, 3, 4, 2, 1), nn.Tanh(),
        )

    def forward(self, z):
        h = self.fc(z)
        return self.net(h.view(z.size(0), -1, 4, 4))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    G, D = Generator().to(device), Discriminator().to(device)
    opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.0, 0.9))
    opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.0, 0.9))
    batch_size = 16
    for step in range(90):
        real = torch.rand(batch_size, 3, 32, 32, device=device) * 2 - 1
        z = torch.randn(batch_size, 64, device=device)
        with torch.no_grad():
            fake = G(z)
        d_loss = F.relu(1 - D(real)).mean() + F.relu(1 + D(fake)).mean()
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()

        z = torch.randn(batch_size, 64, device=device)
        g_loss = -D(G(z)).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        if step % 30 == 0:
            print(f"[{step}] d {d_loss.item():.4f} g {g_loss.item():.4f} "
                  f"mem {torch.cuda.memory_allocated() / 2 ** 20:.1f} MiB")


if __name__ == "__main__":
    main()
