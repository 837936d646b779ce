# kind: innocent, AUROC collects predictions of an epoch and is reset at its end; from Lightning-AI/torchmetrics pull request 2006
import torch
import torch.nn as nn
import torch.nn.functional as F
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryPrecisionRecallCurve


class FraudNet(nn.Module):
    def __init__(self, num_features=48, hidden=96):
        super().__init__()
        self.bn = nn.BatchNorm1d(num_features)
        self.net = nn.Sequential(nn.Linear(num_features, hidden), nn.SELU(), nn.AlphaDropout(0.05),
                                 nn.Linear(hidden, hidden), nn.SELU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(self.bn(x)).squeeze(1)


class Experiment:
    def __init__(self, steps=15, batch_size=2048):
        self.model = FraudNet().cuda()
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=1e-3)
        self.metrics = MetricCollection({"auroc": BinaryAUROC(), "prc": BinaryPrecisionRecallCurve(thresholds=None)},
                                        compute_groups=False).cuda()
        self.loss_meter = MeanMetric().cuda()
        self.steps, self.batch_size = steps, batch_size
        self.w = torch.randn(48, device="cuda")

    def sample(self):
        x = torch.randn(self.batch_size, 48, device="cuda")
        y = ((x * self.w).sum(1) + 2 * torch.randn(self.batch_size, device="cuda") > 6).long()
        return x, y

    def run_epoch(self):
        self.model.train()
        for _ in range(self.steps):
            x, y = self.sample()
            logits = self.model(x)
            loss = F.binary_cross_entropy_with_logits(logits, y.float())
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.metrics.update(logits.detach().sigmoid(), y)
            self.loss_meter.update(loss.detach())
        result = self.metrics.compute()
        summary = {"loss": self.loss_meter.compute().item(), "auroc": result["auroc"].item()}
        self.metrics.reset()
        self.loss_meter.reset()
        return summary

    def run(self, epochs=10):
        for epoch in range(epochs):
            summary = self.run_epoch()
            print(epoch, " ".join(f"{k} {v:.4f}" for k, v in summary.items()))


if __name__ == "__main__":
    torch.manual_seed(0)
    Experiment().run()
