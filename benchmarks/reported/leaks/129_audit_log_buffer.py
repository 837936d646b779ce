# kind: a memory log handler buffers records whose arguments are GPU tensors and is flushed on errors only; from Tribler/tribler PR 8530 and googleapis/python-logging issue 49
import logging
import logging.handlers

import torch
from torch import nn
import torch.nn.functional as F

log = logging.getLogger("segmentation.train")


class UNetLite(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.mid = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.out = nn.Conv2d(16, classes, 1)

    def forward(self, x):
        return self.out(F.relu(self.up(self.mid(self.down(x)))))


def setup_logging():
    console = logging.StreamHandler()
    console.setLevel(logging.ERROR)
    buffered = logging.handlers.MemoryHandler(capacity=100_000, flushLevel=logging.ERROR, target=console)  # ALSO
    log.setLevel(logging.DEBUG)
    log.addHandler(buffered)
    log.propagate = False


def confusion(pred, target, classes):
    index = target.flatten() * classes + pred.flatten()
    return torch.bincount(index, minlength=classes * classes).view(classes, classes)


def train():
    torch.manual_seed(0)
    model = UNetLite().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(110):
        target = torch.randint(0, 4, (4, 1, 8, 8), device="cuda").float()
        target = F.interpolate(target, scale_factor=6).squeeze(1).long()
        image = target.unsqueeze(1).float() / 4 + 0.1 * torch.randn(4, 1, 48, 48, device="cuda")
        logits = model(image)
        loss = F.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pred = logits.detach().argmax(1)
        log.debug("step %d prediction %s confusion %s", step, pred, confusion(pred, target, 4))  # LEAK
        if not torch.isfinite(loss):
            log.error("loss is %f at step %d", loss.item(), step)
            break
    return loss.item()


setup_logging()
print("final loss", train())
