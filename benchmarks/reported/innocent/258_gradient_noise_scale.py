# kind: innocent, flattened gradients of 25 steps are stacked for an estimate of the gradient noise scale, then the list starts anew; own, after McCandlish et al. "An empirical model of large-batch training" scripts
import torch
import torch.nn as nn
import torch.nn.functional as F


class GradientNoiseScale:
    def __init__(self, every):
        self.every = every
        self.grads = []
        self.estimates = []

    def record(self, model):
        flat = torch.cat([p.grad.detach().reshape(-1) for p in model.parameters()])
        self.grads.append(flat)
        if len(self.grads) == self.every:
            self.estimates.append(self._estimate())
            self.grads = []

    def _estimate(self):
        g = torch.stack(self.grads)
        mean = g.mean(0)
        trace = (g - mean).pow(2).sum() / (len(g) - 1)
        return (trace / mean.pow(2).sum().clamp(min=1e-12)).item()


def vgg(cfg, classes=10):
    layers, c = [], 3
    for v in cfg:
        if v == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(c, v, 3, padding=1), nn.BatchNorm2d(v), nn.ReLU(inplace=True)]
            c = v
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes))


class Experiment:
    def __init__(self, batch_size=8, lr=0.05, device="cuda"):
        self.device, self.batch_size = device, batch_size
        self.model = vgg([16, "M", 32, "M", 64, 64]).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
        self.noise = GradientNoiseScale(25)

    def step(self):
        x = torch.randn(self.batch_size, 3, 32, 32, device=self.device)
        y = torch.randint(0, 10, (self.batch_size,), device=self.device)
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.noise.record(self.model)
        self.optimizer.step()
        return loss

    def run(self, steps):
        for i in range(1, steps + 1):
            loss = self.step()
            if i % 50 == 0:
                b = self.noise.estimates[-1]
                print(f"{i:4d} loss {loss.item():.3f} noise scale {b * self.batch_size:.1f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    Experiment().run(200)
