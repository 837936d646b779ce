# kind: learning without forgetting keeps the model of the task before as self.previous = copy.deepcopy(self), which copies the previous model's previous model as well, so the chain gets one model longer with every task of a stream; from learning-without-forgetting / iCaRL reimplementations and learnables/learn2learn issue 88 (deepcopy of the wrapper)
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Backbone(nn.Sequential):
    def __init__(self, inputs, width):
        super().__init__(
            nn.Linear(inputs, width), nn.LayerNorm(width), nn.GELU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())


class LwF(nn.Module):
    def __init__(self, inputs=96, width=320, classes=10, temperature=2.0):
        super().__init__()
        self.backbone = Backbone(inputs, width)
        self.classifier = nn.Linear(width, classes)
        self.previous = None
        self.temperature = temperature

    def forward(self, x):
        return self.classifier(self.backbone(x))

    def learnable(self):
        return [*self.backbone.parameters(), *self.classifier.parameters()]

    def distillation(self, x, logits):
        if self.previous is None:
            return logits.new_zeros(())
        with torch.no_grad():
            target = (self.previous(x) / self.temperature).softmax(-1)
        return F.cross_entropy(logits / self.temperature, target)

    def loss(self, x, y, weight=0.5):
        logits = self(x)
        return F.cross_entropy(logits, y) + weight * self.distillation(x, logits)

    def end_task(self):
        self.previous = copy.deepcopy(self)  # LEAK
        for p in self.previous.parameters():
            p.requires_grad_(False)
            p.grad = None
        self.previous.eval()


class DriftingStream:
    """One gas sensor array: every week's calibration is rotated a little against the last."""

    def __init__(self, inputs=96, classes=10, seed=5):
        self.gen = torch.Generator().manual_seed(seed)
        self.centres = 2 * torch.randn(classes, inputs, generator=self.gen)
        self.classes = classes

    def __iter__(self):
        while True:
            self.centres += 0.15 * torch.randn(self.centres.shape, generator=self.gen)
            yield self.week

    def week(self, batches, size=32):
        for _ in range(batches):
            y = torch.randint(0, self.classes, (size,), generator=self.gen)
            x = self.centres[y] + torch.randn(size, self.centres.shape[1], generator=self.gen)
            yield x.cuda(), y.cuda()


def fit(model, batches, lr=0.02):
    opt = torch.optim.SGD(model.learnable(), lr=lr, momentum=0.9)
    right = seen = 0
    for x, y in batches:
        with torch.no_grad():
            right += (model(x).argmax(-1) == y).sum().item()
        seen += len(y)
        opt.zero_grad()
        model.loss(x, y).backward()
        opt.step()
    return right / seen


def main(weeks=50):
    torch.manual_seed(0)
    model = LwF().cuda()
    for number, week in zip(range(weeks), DriftingStream()):
        accuracy = fit(model, week(batches=4))
        model.end_task()
        if number % 10 == 0:
            print(f"week {number}: accuracy before learning {accuracy:.2f}")


if __name__ == "__main__":
    main()
