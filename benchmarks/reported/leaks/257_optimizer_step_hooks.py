# kind: a new optimizer step hook, whose closure captures the batch, is registered in every iteration and never removed; own, in the manner of hook-leak reports such as fffasttime/MRFI pull 5
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"
torch.manual_seed(3)


class Autoencoder(nn.Module):
    def __init__(self, d=256, z=16):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 128), nn.ReLU(), nn.Linear(128, z))
        self.dec = nn.Sequential(nn.Linear(z, 128), nn.ReLU(), nn.Linear(128, d))

    def forward(self, x):
        return self.dec(self.enc(x))


class UpdateInspector:
    """How much did the reconstruction of the batch change through the update?"""

    def __init__(self, model, optimizer, every=10):
        self.model = model
        self.optimizer = optimizer
        self.every = every
        self.n = 0
        self.gains = []

    def watch(self, batch, recon):
        self.n += 1
        at = self.n
        before = recon.detach()

        def after_step(optimizer, args, kwargs):
            if at != self.n or at % self.every:
                return
            with torch.no_grad():
                now = self.model(batch)
                gain = F.mse_loss(before, batch) - F.mse_loss(now, batch)
            self.gains.append(gain.item())

        self.optimizer.register_step_post_hook(after_step)  # LEAK


def synth(batch_size=128, d=256):
    t = torch.linspace(0, 6.28, d, device=device)
    freq = torch.rand(batch_size, 1, device=device) * 4 + 1
    phase = torch.rand(batch_size, 1, device=device) * 6.28
    return torch.sin(freq * t + phase)


def train(steps=120):
    model = Autoencoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    inspector = UpdateInspector(model, optimizer)
    for step in range(steps):
        batch = synth()
        recon = model(batch)
        loss = F.mse_loss(recon, batch)
        inspector.watch(batch, recon)  # ALSO
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            mean_gain = sum(inspector.gains[-4:]) / 4
            print(f"{step + 1}: loss {loss.item():.5f} mean gain {mean_gain:.2e}")
    return model


if __name__ == "__main__":
    train()
