# kind: https://discuss.pytorch.org/t/gpu-memory-increase-while-i-wanna-to-backward-with-accumulative-loss/43284: moving average of a codebook's usage with soft assignments, not detached
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"


class SoftCodebook(nn.Module):
    def __init__(self, codes=256, dim=32, decay=0.99, temperature=0.5):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(codes, dim) * 0.1)
        self.usage = torch.ones(codes, device=device) / codes
        self.decay, self.temperature = decay, temperature

    def forward(self, z):
        b, c, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, c)
        distance = torch.cdist(flat, self.codes)
        assign = F.softmax(-distance / self.temperature, dim=-1)
        quantized = (assign @ self.codes).view(b, h, w, c).permute(0, 3, 1, 2)
        perplexity = torch.exp(-(self.usage * (self.usage + 1e-8).log()).sum()).detach()
        self.usage = self.decay * self.usage + (1 - self.decay) * assign.mean(0)  # LEAK
        return quantized, F.mse_loss(quantized, z), perplexity

    def dead_codes(self):
        return int((self.usage < 1e-4).sum())


class VQAE(nn.Module):
    def __init__(self, width=64, dim=32):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.SiLU(), nn.Conv2d(width, width, 4, 2, 1), nn.SiLU(), nn.Conv2d(width, dim, 1))
        self.book = SoftCodebook(dim=dim)
        self.dec = nn.Sequential(nn.ConvTranspose2d(dim, width, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1))

    def forward(self, x):
        q, commit, perplexity = self.book(self.enc(x))
        return self.dec(q), commit, perplexity


def main():
    model = VQAE().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for step in range(80):
        x = torch.rand(8, 3, 32, 32, device=device)
        recon, commit, perplexity = model(x)
        loss = F.l1_loss(recon, x) + 0.25 * commit
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # ALSO
        optimizer.step()
        if step % 10 == 0:
            print(f"{step}: loss {loss.item():.4f} perplexity {perplexity.item():.1f} dead {model.book.dead_codes()} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
