# kind: K-FAC preconditioner whose hooks collect inputs and output gradients of layers that are used several times a step, they are turned into factors and cleared at each update, the interval between updates doubles until it is forty steps; after n-gao/pytorch-kfac PR 1 (activations and sensitivities are never cleared; the form with the fix)
"""Recurrent cell, unrolled by hand, trained with Kronecker-factored curvature.

https://github.com/n-gao/pytorch-kfac/pull/1 (fix tracking when module used multiple times)
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def inverse(a, damping, iterations=12):
    """Newton-Schulz; a is symmetric and positive."""
    a = a + damping * torch.eye(len(a), device=a.device)
    x = a.t() / (a.abs().sum(0).max() * a.abs().sum(1).max())
    for _ in range(iterations):
        x = 2 * x - x @ a @ x
    return x


class LinearBlock:
    """Fisher block of one nn.Linear: A from its inputs, S from the gradients of its outputs."""

    def __init__(self, module, decay=0.9):
        self.module, self.decay = module, decay
        self._activations, self._sensitivities = [], []
        self.A = self.S = self.A_inverse = self.S_inverse = None
        module.register_forward_hook(self._forward)
        module.register_full_backward_hook(self._backward)

    def _forward(self, module, args, output):
        if module.training and torch.is_grad_enabled():
            x = args[0].detach()
            self._activations.append(torch.cat([x, x.new_ones(len(x), 1)], 1))

    def _backward(self, module, grad_input, grad_output):
        self._sensitivities.append(grad_output[0].detach() * len(grad_output[0]))

    def update_cov(self):
        for name, parts in (("A", self._activations), ("S", self._sensitivities)):
            x = torch.cat(parts)
            new, old = x.t() @ x / len(x), getattr(self, name)
            setattr(self, name, new if old is None else old.lerp(new, 1 - self.decay))
            parts.clear()

    def update_inverse(self, damping):
        pi = (self.A.trace() / len(self.A) / (self.S.trace() / len(self.S)).clamp(min=1e-10)).sqrt()
        self.A_inverse = inverse(self.A, damping**0.5 * pi)
        self.S_inverse = inverse(self.S, damping**0.5 / pi.clamp(min=1e-10))

    def precondition(self):
        if self.A_inverse is None:
            return
        weight, bias = self.module.weight, self.module.bias
        joint = self.S_inverse @ torch.cat([weight.grad, bias.grad[:, None]], 1) @ self.A_inverse
        weight.grad, bias.grad = joint[:, :-1].contiguous(), joint[:, -1].contiguous()


class KFAC:
    def __init__(self, model, first=5, last=40, damping=1e-2, clip=1.0):
        self.model = model
        self.blocks = [LinearBlock(m) for m in model.modules() if isinstance(m, nn.Linear)]
        self.interval, self.last, self.damping, self.clip = first, last, damping, clip
        self.countdown = first

    def collected(self):
        return sum(len(b._activations) for b in self.blocks)

    def step(self):
        self.countdown -= 1
        if self.countdown == 0:
            for block in self.blocks:
                block.update_cov()
                block.update_inverse(self.damping)
            self.interval = min(2 * self.interval, self.last)
            self.countdown = self.interval
        for block in self.blocks:
            block.precondition()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)


class Counter(nn.Module):
    """Reads a sequence of digits and says their sum modulo ten."""

    def __init__(self, hidden=96):
        super().__init__()
        self.digit = nn.Embedding(10, hidden)
        self.cell, self.out = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 10)

    def forward(self, digits):
        h = torch.zeros(len(digits), self.cell.out_features, device=digits.device)
        for t in range(digits.shape[1]):
            h = torch.tanh(self.cell(torch.cat([h, self.digit(digits[:, t])], 1)))
        return self.out(h)


def main(steps=330, batch=64, length=6):
    torch.manual_seed(0)
    model = Counter().to("cuda")
    kfac, opt = KFAC(model), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for i in range(steps):
        digits = torch.randint(0, 10, (batch, length))
        loss = F.cross_entropy(model(digits.cuda()), (digits.sum(1) % 10).cuda())
        opt.zero_grad()
        loss.backward()
        kfac.step()
        opt.step()
        if i % 30 == 0:
            print(f"step {i}: loss {loss.item():.3f}, {kfac.collected()} inputs collected, update every {kfac.interval}")


if __name__ == "__main__":
    main()
