# kind: precision-recall states of the last 40 updates in a sliding window beside the step metric, the oldest update is dropped; from Lightning-AI/torchmetrics issues on list states and its Running wrapper
from collections import deque

import torch
from torch import nn
from torchmetrics import Metric
from torchmetrics.functional.classification import multilabel_average_precision

LABELS = 30


class WindowedAP(Metric):
    full_state_update = False

    def __init__(self, window, num_labels):
        super().__init__()
        self.window, self.num_labels = window, num_labels
        self.add_state("preds", default=[], dist_reduce_fx="cat")
        self.add_state("target", default=[], dist_reduce_fx="cat")

    def update(self, preds, target):
        self.preds.append(preds)
        self.target.append(target)
        if len(self.preds) > self.window:
            del self.preds[0], self.target[0]

    def compute(self):
        return multilabel_average_precision(torch.cat(list(self.preds)), torch.cat(list(self.target)), self.num_labels)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, LABELS))

    def forward(self, x):
        return self.net(x)


def main():
    torch.manual_seed(0)
    w = torch.randn(24, LABELS, device="cuda")
    net = Head().cuda()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    window = WindowedAP(40, LABELS).cuda()
    losses = deque(maxlen=40)
    for step in range(180):
        x = torch.randn(768, 24, device="cuda")
        y = (x @ w > 4).long()
        logits = net(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        window.update(logits.detach().sigmoid(), y)
        losses.append(loss.detach())
        if step % 60 == 59:
            print(step + 1, "loss", round(torch.stack(list(losses)).mean().item(), 3), "AP of the last 40", round(window.compute().item(), 3))


main()
