# kind: publish/subscribe table refers to the methods of its subscribers through WeakMethod and drops dead ones, the models of a scan live as long as they are among the twelve best candidates; after scikit-hep/pyhf PR 1035 (the repaired form)
import math
import weakref

import torch

_events = {}
_backend = {"dtype": torch.float32, "device": "cuda"}


class WeakList(list):
    def append(self, method):
        def discard(ref):
            self.remove(ref)

        super().append(weakref.WeakMethod(method, discard))

    def __call__(self):
        for ref in list(self):
            method = ref()
            if method is not None:
                method()


def subscribe(event):
    def decorate(method):
        _events.setdefault(event, WeakList()).append(method)
        return method

    return decorate


def set_backend(dtype):
    _backend["dtype"] = dtype
    _events.get("tensorlib_changed", list)()


def astensor(values):
    return torch.as_tensor(values, **_backend)


class TensorViewer:
    def __init__(self, sizes):
        self.sizes = list(sizes)
        self._precompute()
        subscribe("tensorlib_changed")(self._precompute)

    def _precompute(self):
        self.scatter = torch.eye(sum(self.sizes), **_backend)

    def stitch(self, parts):
        return torch.cat(parts) @ self.scatter


class Model:
    def __init__(self, mass, background):
        bins = len(background)
        self.mass = mass
        self.background = astensor(background)
        self.signal = astensor([30 * math.exp(-0.5 * ((i - mass) / 6) ** 2) for i in range(bins)])
        self.viewer = TensorViewer([bins // 3, bins - bins // 3])

    def nll(self, data, mu):
        rate = (mu * self.signal + self.background).clamp(min=1e-3)
        rate = self.viewer.stitch(rate.split(self.viewer.sizes))
        return (rate - data * rate.log()).sum()


def fit(model, data, steps=5):
    mu = torch.ones((), device="cuda", requires_grad=True)
    opt = torch.optim.Adam([mu], lr=0.1)
    for _ in range(steps):
        opt.zero_grad()
        loss = model.nll(data, mu)
        loss.backward()
        opt.step()
    return loss.item()


class Candidates:
    """The best mass points so far with their models, for the plots of the pulls."""

    def __init__(self, size):
        self.size = size
        self.rows = []

    def offer(self, nll, model):
        self.rows.append((nll, model))
        self.rows.sort(key=lambda r: r[0])
        del self.rows[self.size:]

    def best(self):
        return self.rows[0]


def scan(bins=256, points=130):
    background = [80 * math.exp(-i / 90) + 5 for i in range(bins)]
    data = torch.poisson(torch.tensor(background)).to("cuda")
    candidates = Candidates(12)
    for k in range(points):
        mass = 10 + (k * 37 % points) * (bins - 20) / points
        model = Model(mass, background)
        candidates.offer(fit(model, data), model)
        if k % 30 == 0:
            nll, best = candidates.best()
            print(f"{k}: best mass {best.mass:.1f} with nll {nll:.2f}, {len(_events['tensorlib_changed'])} subscribers")


if __name__ == "__main__":
    torch.manual_seed(1)
    scan()
