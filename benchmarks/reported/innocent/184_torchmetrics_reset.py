# kind: a metric with list states is reset after each epoch; after Lightning-AI/torchmetrics issue 1949
import torch
import torch.nn as nn
import torch.nn.functional as F


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self._defaults = {}

    def add_state(self, name, default):
        self._defaults[name] = default
        setattr(self, name, list(default))

    def reset(self):
        for name, default in self._defaults.items():
            getattr(self, name).clear()


class BinaryAUROC(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("preds", [])
        self.add_state("target", [])

    def update(self, preds, target):
        self.preds.append(preds.flatten())
        self.target.append(target.flatten())

    def compute(self):
        preds, target = torch.cat(self.preds), torch.cat(self.target)
        order = torch.argsort(preds, descending=True)
        t = target[order].float()
        tps, fps = t.cumsum(0), (1 - t).cumsum(0)
        tpr, fpr = tps / (tps[-1] + 1e-8), fps / (fps[-1] + 1e-8)
        return torch.trapezoid(tpr, fpr)


class DefectSegmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1))

    def forward(self, x):
        return self.net(x)


def evaluate(model, pipelines, n_batches):
    results = {}
    model.eval()
    for name, noise in pipelines.items():
        metric = BinaryAUROC()
        with torch.no_grad():
            for _ in range(n_batches):
                x = torch.randn(8, 1, 64, 64).cuda() * noise
                y = (torch.rand(8, 1, 64, 64) < 0.1).cuda()
                metric.update(torch.sigmoid(model(x)), y)
            results[name] = metric.compute().item()
        metric.reset()
    model.train()
    return results


def main():
    torch.manual_seed(0)
    model = DefectSegmenter().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pipelines = {"clean": 1.0, "noisy": 2.0}
    train_auroc = BinaryAUROC()
    for epoch in range(5):
        for _ in range(20):
            x = torch.randn(8, 1, 64, 64).cuda()
            y = (torch.rand(8, 1, 64, 64) < 0.1).float().cuda()
            logits = model(x)
            loss = F.binary_cross_entropy_with_logits(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train_auroc.update(logits.detach().sigmoid(), y)
        print(epoch, train_auroc.compute().item(), evaluate(model, pipelines, 10))
        train_auroc.reset()


if __name__ == "__main__":
    main()
