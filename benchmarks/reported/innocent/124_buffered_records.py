# kind: the memory log handler holds records with GPU arguments and is emptied every 25 records; after Tribler/tribler PR 8530
import io
import logging
import logging.handlers

import torch
from torch import nn
import torch.nn.functional as F


class HistogramFormatter(logging.Formatter):
    def format(self, record):
        if isinstance(record.args, tuple) and record.args and torch.is_tensor(record.args[-1]):
            hist = torch.histc(record.args[-1], bins=8)
            return "step %d hidden " % record.args[0] + str(hist.tolist())
        return super().format(record)


def setup(capacity):
    sink = io.StringIO()
    stream = logging.StreamHandler(sink)
    stream.setFormatter(HistogramFormatter())
    logger = logging.getLogger("activations")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(logging.handlers.MemoryHandler(capacity, flushLevel=logging.ERROR, target=stream))
    return logger, sink


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, padding=1, stride=2)
        self.fc = nn.Linear(12 * 8 * 8, 10)

    def forward(self, x):
        h = F.relu(self.conv(x))
        return self.fc(h.flatten(1)), h


logger, sink = setup(capacity=25)
torch.manual_seed(0)
model = ConvNet().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(150):
    x = torch.randn(16, 3, 16, 16, device="cuda")
    y = (x.mean((1, 2, 3)) * 100).long().clamp(0, 9)
    logits, hidden = model(x)
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    logger.info("step %d hidden %s", step, hidden.detach())
print(len(sink.getvalue().splitlines()), "lines written")
