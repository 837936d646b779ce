# kind: backward(create_graph=True) ties each trial's parameters to their .grad in a cycle and nothing resets .grad when the trial is over; from kach/gradient-descent-the-ultimate-optimizer PR 1 and pytorch/pytorch issue 82528
import torch
from torch import nn
import torch.nn.functional as F


class SGDWithTunableLR:
    def __init__(self, model, lr, kappa):
        self.model = model
        self.alpha = torch.tensor(lr, device="cuda", requires_grad=True)
        self.kappa = kappa

    def begin(self):
        for p in self.model.parameters():
            p.requires_grad_(True)
            p.grad = None
        self.alpha.requires_grad_(True)
        self.alpha.grad = None

    def step(self, hypergrad):
        with torch.no_grad():
            self.alpha -= self.kappa * hypergrad
            self.alpha.clamp_(1e-4, 0.5)
            for p in self.model.parameters():
                p -= self.alpha * p.grad


def make_classifier(width):
    return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10)).cuda()


def run_trial(width, lr, iterations, data, labels):
    model = make_classifier(width)
    opt = SGDWithTunableLR(model, lr=lr, kappa=1e-3)
    last = None
    for it in range(iterations):
        idx = torch.randint(0, data.shape[0], (64,), device="cuda")
        opt.begin()
        loss = F.cross_entropy(model(data[idx]), labels[idx])
        loss.backward(create_graph=True)  # LEAK
        squared = sum((p.grad ** 2).sum() for p in model.parameters())
        opt.step(-squared.detach())
        last = loss.item()
    return last, opt.alpha.item()


torch.manual_seed(1)
features = torch.randn(2048, 64, device="cuda")
targets = (features[:, :10] + 0.1 * torch.randn(2048, 10, device="cuda")).argmax(1)

results = []
for trial in range(30):
    width = 512 if trial % 2 else 768
    start = 10 ** (-2 + 0.05 * (trial % 10))
    final_loss, final_lr = run_trial(width, start, iterations=4, data=features, labels=targets)
    results.append((width, start, final_lr, final_loss))

best = min(results, key=lambda r: r[-1])
print("best", best)
