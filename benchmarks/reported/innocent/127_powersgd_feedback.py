# kind: low-rank gradient compression keeps an error memory and a query matrix per layer, and layers start compressing one after another; after torch.distributed powerSGD_hook
from dataclasses import dataclass, field

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class PowerSGDState:
    rank: int = 2
    start_iter: int = 8
    stagger: int = 5
    iteration: int = 0
    error_dict: dict = field(default_factory=dict)
    q_memory_dict: dict = field(default_factory=dict)


def orthogonalize(m):
    q, _ = torch.linalg.qr(m)
    return q


@torch.no_grad()
def compress_gradients(state, named_params):
    for index, (name, p) in enumerate(named_params):
        if p.grad is None or p.dim() != 2:
            continue
        if state.iteration < state.start_iter + state.stagger * (index // 2):
            continue
        grad = p.grad
        if name in state.error_dict:
            grad = grad + state.error_dict[name]
        else:
            state.error_dict[name] = torch.zeros_like(grad)
            state.q_memory_dict[name] = torch.randn(grad.shape[1], state.rank, device=grad.device)
        left = orthogonalize(grad @ state.q_memory_dict[name])
        right = grad.t() @ left
        approx = left @ right.t()
        state.error_dict[name].copy_(grad - approx)
        state.q_memory_dict[name] = right
        p.grad.copy_(approx)
    state.iteration += 1


class Tower(nn.Module):
    def __init__(self, dim=192, depth=5):
        super().__init__()
        self.body = nn.Sequential(*[m for _ in range(depth) for m in (nn.Linear(dim, dim), nn.Tanh())])
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.manual_seed(0)
    model = Tower().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    state = PowerSGDState()
    for it in range(120):
        x = torch.randn(64, 192, device="cuda")
        loss = F.mse_loss(model(x), x[:, :4].sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        compress_gradients(state, list(model.named_parameters()))
        optimizer.step()
        if it % 40 == 0:
            print(it, loss.item(), len(state.error_dict))


main()
