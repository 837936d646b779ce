# kind: clone() of a model patcher copies the dict of patches but shares the lists in it, adapters added to a prompt's clone also end up in the base patcher; after Comfy-Org/ComfyUI PR 2564 (models patched twice, cloned patchers)
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
DIM = 320
PROMPTS = 64
SAMPLER_STEPS = 3


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Denoiser(nn.Module):
    def __init__(self, dim=DIM, depth=2):
        super().__init__()
        self.time = nn.Linear(1, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))

    def forward(self, x, sigma):
        h = x + self.time(sigma.view(1, 1))
        for block in self.blocks:
            h = block(h)
        return h


class Patcher:
    """Applies low-rank weight patches to a model just for the time of sampling."""

    def __init__(self, model):
        self.model = model
        self.patches = {}
        self.originals = {}

    def clone(self):
        other = Patcher(self.model)
        other.patches = self.patches.copy()  # ALSO
        return other

    def add_patches(self, adapter, strength):
        for key, (up, down) in adapter.items():
            self.patches.setdefault(key, []).append((strength, up, down))  # LEAK

    def __enter__(self):
        weights = dict(self.model.named_parameters())
        for key, entries in self.patches.items():
            self.originals[key] = weights[key].detach().clone()
            for strength, up, down in entries:
                weights[key].data.addmm_(up, down, alpha=strength)
        return self.model

    def __exit__(self, *exc):
        weights = dict(self.model.named_parameters())
        for key, original in self.originals.items():
            weights[key].data.copy_(original)
        self.originals.clear()


def read_adapter(model, rank, seed):
    """Stands for reading a LoRA file that the user has picked."""
    generator = torch.Generator().manual_seed(seed)
    adapter = {}
    for name, p in model.named_parameters():
        if name.endswith(("up.weight", "down.weight")):
            up = 0.01 * torch.randn(p.size(0), rank, generator=generator)
            down = torch.randn(rank, p.size(1), generator=generator) / p.size(1) ** 0.5
            adapter[name] = (up.to(DEVICE), down.to(DEVICE))
    return adapter


def sample(patcher, noise):
    sigmas = torch.linspace(10.0, 0.1, SAMPLER_STEPS + 1, device=DEVICE)
    x = noise * sigmas[0]
    with patcher as model:
        for sigma, following in zip(sigmas[:-1], sigmas[1:]):
            denoised = model(x / (1 + sigma), sigma.log())
            x = denoised + (x - denoised) * following / sigma
    return x


@torch.no_grad()
def main():
    torch.manual_seed(0)
    model = Denoiser().to(DEVICE).eval()
    base = Patcher(model)
    base.add_patches(read_adapter(model, rank=8, seed=0), strength=0.5)
    for prompt in range(1, PROMPTS + 1):
        patcher = base.clone()
        patcher.add_patches(read_adapter(model, rank=8, seed=prompt), strength=0.1 + 0.02 * (prompt % 5))
        image = sample(patcher, torch.randn(64, DIM, device=DEVICE))
        if prompt % 8 == 0:
            print(f"prompt {prompt}: mean {image.mean().item():+.4f} std {image.std().item():.4f}")


if __name__ == "__main__":
    main()
