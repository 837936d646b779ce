# kind: lru_cache keyed by the model keeps each fold's model alive; from torchtune / ParlAI issues (get_adapter_params, cross validation)
import functools
import torch
from torch import nn


class AdapterLinear(nn.Module):
    def __init__(self, dim, rank=16):
        super().__init__()
        self.frozen = nn.Linear(dim, dim)
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)

    def adapter_params(self):
        return ["down.weight", "up.weight"]

    def forward(self, x):
        return torch.relu(self.frozen(x) + self.up(self.down(x)))


@functools.lru_cache()  # ALSO
def get_adapter_params(model):
    found = {}
    for prefix, mod in model.named_modules():
        if hasattr(mod, "adapter_params"):
            names = mod.adapter_params()
            for n, p in mod.named_parameters():
                if n in names:
                    found[f"{prefix}.{n}"] = p
    return found


def build_model(dim=256, depth=4, classes=5):
    return nn.Sequential(*[AdapterLinear(dim) for _ in range(depth)], nn.Linear(dim, classes))


def run_fold(fold, device, steps=10):
    torch.manual_seed(fold)
    model = build_model().to(device)
    adapters = get_adapter_params(model)  # LEAK
    for p in model.parameters():
        p.requires_grad_(False)
    for p in adapters.values():
        p.requires_grad_(True)
    opt = torch.optim.AdamW(adapters.values(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    last = None
    for _ in range(steps):
        x = torch.randn(64, 256, device=device)
        y = torch.randint(0, 5, (64,), device=device)
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        last = loss.item()
    return last


def cross_validate(n_folds=10, repeats=3):
    device = torch.device("cuda")
    scores = []
    for r in range(repeats):
        for f in range(n_folds):
            scores.append(run_fold(r * n_folds + f, device))
            torch.cuda.empty_cache()
        print(f"repeat {r}: mean loss {sum(scores[-n_folds:]) / n_folds:.4f}")
    return scores


cross_validate()
