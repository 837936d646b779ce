# kind: MetricTracker makes a new copy of the confusion matrices at each evaluation and keeps all earlier ones, an online learner is evaluated for ever; from Lightning-AI/torchmetrics PR 718 (tracker) and NRCan/geo-deep-learning issue 582 (metrics grow until out of memory)
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassJaccardIndex
from torchmetrics.wrappers import MetricTracker

NUM_CLASSES = 180


class OnlineClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, NUM_CLASSES))

    def forward(self, x):
        return self.body(x)


def stream(n, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        yield torch.randn(32, 64, generator=g), torch.randint(0, NUM_CLASSES, (32,), generator=g)


class Prequential:
    """Test-then-train evaluation of a stream in windows."""

    def __init__(self, model, every):
        self.model = model
        self.every = every
        metrics = MetricCollection({
            "cm": MulticlassConfusionMatrix(NUM_CLASSES),
            "iou": MulticlassJaccardIndex(NUM_CLASSES, average="macro"),
        }, compute_groups=False)
        self.tracker = MetricTracker(metrics, maximize=[True, True]).cuda()
        self.opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.seen = 0

    def new_window(self):
        self.tracker.increment()  # LEAK

    def consume(self, x, y):
        if self.seen % self.every == 0:
            self.new_window()
        self.seen += 1
        logits = self.model(x)
        self.tracker.update(logits.detach(), y)
        loss = nn.functional.cross_entropy(logits, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        if self.seen % self.every == 0:
            return float(self.tracker.compute()["iou"])


torch.manual_seed(1)
runner = Prequential(OnlineClassifier().cuda(), every=5)
curve = []
for x, y in stream(240, seed=9):
    score = runner.consume(x.cuda(), y.cuda())
    if score is not None:
        curve.append(score)
