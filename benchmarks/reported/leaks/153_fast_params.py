# kind: the differentiable inner loop records the fast weights after every step so that time= can address them, test-time adaptation opens it once for the whole stream; after facebookresearch/higher issue 37
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(17)


class FunctionalModel:
    def __init__(self, module, track_higher_grads):
        self.module = module
        self.names = [n for n, _ in module.named_parameters()]
        self.track_higher_grads = track_higher_grads
        self._fast_params = [list(module.parameters())]

    def parameters(self, time=-1):
        return self._fast_params[time]

    def update_params(self, new):
        if not self.track_higher_grads:
            new = [p.detach().requires_grad_() for p in new]
        self._fast_params.append(new)  # LEAK

    def __call__(self, x, time=-1):
        return functional_call(self.module, dict(zip(self.names, self.parameters(time))), (x,))


class DifferentiableSGD:
    def __init__(self, fmodel, lr):
        self.fmodel = fmodel
        self.lr = lr

    def step(self, loss):
        params = self.fmodel.parameters()
        grads = torch.autograd.grad(loss, params, create_graph=self.fmodel.track_higher_grads)
        self.fmodel.update_params([p - self.lr * g for p, g in zip(params, grads)])  # ALSO


@contextmanager
def innerloop_ctx(module, lr, track_higher_grads=True):
    fmodel = FunctionalModel(module, track_higher_grads)
    yield fmodel, DifferentiableSGD(fmodel, lr)


def meta_train(model, tasks, inner_steps, gen):
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(tasks):
        w = torch.randn(64, 8, generator=gen).cuda() / 8
        x = torch.randn(64, 64, generator=gen).cuda()
        with innerloop_ctx(model, lr=0.05) as (fmodel, diffopt):
            for _ in range(inner_steps):
                diffopt.step((fmodel(x[:32]) - x[:32] @ w).pow(2).mean())
            loss = (fmodel(x[32:]) - x[32:] @ w).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def adapt_online(model, length, gen):
    """The relation drifts slowly; predict first, then adapt on the revealed target."""
    w = torch.randn(64, 8, generator=gen).cuda() / 8
    error = 0.0
    with innerloop_ctx(model, lr=0.05, track_higher_grads=False) as (fmodel, diffopt):
        for t in range(length):
            w = 0.99 * w + 0.01 * torch.randn(64, 8, generator=gen).cuda()
            x = torch.randn(256, 64, generator=gen).cuda()
            loss = (fmodel(x) - x @ w).pow(2).mean()
            error = 0.95 * error + 0.05 * loss.item()
            diffopt.step(loss)
            if t % 60 == 59:
                print(f"t {t + 1}: running error {error:.4f}")


def main():
    gen = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(),
                          nn.Linear(512, 8)).cuda()
    print("meta loss", round(meta_train(model, tasks=12, inner_steps=3, gen=gen), 4))
    adapt_online(model, length=240, gen=gen)


if __name__ == "__main__":
    main()
