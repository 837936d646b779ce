# kind: publish/subscribe table keeps bound methods of every viewer ever built so that they can recompute on a change of backend; models are made anew for each scanned point; after scikit-hep/pyhf issue 934 and PR 1035
import math

import torch

__events = {}
_backend = {"dtype": torch.float32, "device": "cuda"}


def subscribe(event):
    """Decorator: call the function whenever the event is triggered."""

    def decorate(func):
        __events.setdefault(event, []).append(func)  # LEAK
        return func

    return decorate


def trigger(event):
    for func in __events.get(event, []):
        func()


def set_backend(dtype=None, device=None):
    _backend["dtype"] = dtype or _backend["dtype"]
    _backend["device"] = device or _backend["device"]
    trigger("tensorlib_changed")


def astensor(values):
    return torch.as_tensor(values, dtype=_backend["dtype"], device=_backend["device"])


class TensorViewer:
    def __init__(self, sizes):
        self.sizes = list(sizes)
        self._precompute()
        subscribe("tensorlib_changed")(self._precompute)  # ALSO

    def _precompute(self):
        n = sum(self.sizes)
        self.scatter = torch.eye(n, device=_backend["device"], dtype=_backend["dtype"])

    def stitch(self, parts):
        return torch.cat(parts) @ self.scatter


class HistoSysCombiner:
    """Interpolates bin contents between the down, nominal and up variations."""

    def __init__(self, down, nominal, up):
        self.nominal = nominal
        self.deltas = torch.stack([nominal - down, up - nominal])

    def __call__(self, alpha):
        up = alpha.clamp(min=0)[:, None] * self.deltas[1]
        down = alpha.clamp(max=0)[:, None] * self.deltas[0]
        return self.nominal + (up + down).sum(0)


class Model:
    def __init__(self, signal, background, uncertainty):
        n = len(signal)
        self.signal = astensor(signal)
        bkg = astensor(background)
        rel = astensor(uncertainty)
        self.combine = HistoSysCombiner(bkg * (1 - rel), bkg, bkg * (1 + rel))
        self.viewer = TensorViewer([n - n // 2, n // 2])

    def expected(self, mu, alpha):
        rates = mu * self.signal + self.combine(alpha)
        return self.viewer.stitch(rates.split(self.viewer.sizes)).clamp(min=1e-3)

    def nll(self, data, mu, alpha):
        rate = self.expected(mu, alpha)
        return (rate - data * rate.log()).sum() + 0.5 * (alpha**2).sum()


def fit(model, data, steps=6):
    mu = torch.ones((), device="cuda", requires_grad=True)
    alpha = torch.zeros(1, device="cuda", requires_grad=True)
    opt = torch.optim.Adam([mu, alpha], lr=0.05)
    for _ in range(steps):
        opt.zero_grad()
        loss = model.nll(data, mu, alpha)
        loss.backward()
        opt.step()
    return mu.item(), loss.item()


def signal_shape(mass, bins):
    return [30 * math.exp(-0.5 * ((i - mass) / 6) ** 2) for i in range(bins)]


def scan(bins=240, points=120):
    background = [80 * math.exp(-i / 90) + 5 for i in range(bins)]
    data = torch.poisson(torch.tensor(background)).to("cuda")
    best = (math.inf, None)
    for k in range(points):
        mass = 10 + k * (bins - 20) / points
        model = Model(signal_shape(mass, bins), background, [0.05] * bins)
        mu, nll = fit(model, data)
        best = min(best, (nll, mass))
        if k % 30 == 0:
            print(f"mass {mass:6.1f}: mu {mu:.3f}, nll {nll:.2f}")
    print("best fit at mass", round(best[1], 1))


if __name__ == "__main__":
    torch.manual_seed(1)
    scan()
