# kind: innocent, SmoothedValue windows of 20 GPU tensors and a window of sample grids for the logger; from pytorch/vision references utils.MetricLogger, detectron2 HistoryBuffer
from collections import defaultdict, deque

import torch
import torch.nn as nn
import torch.nn.functional as F


class SmoothedValue:
    def __init__(self, window_size=20):
        self.deque = deque(maxlen=window_size)
        self.count = 0

    def update(self, value):
        self.deque.append(value)
        self.count += 1

    @property
    def median(self):
        return torch.stack(list(self.deque)).median().item()


class MetricLogger:
    def __init__(self, image_window=24):
        self.meters = defaultdict(SmoothedValue)
        self.grads = deque(maxlen=20)
        self.images = deque(maxlen=image_window)

    def update(self, **kwargs):
        for k, v in kwargs.items():
            self.meters[k].update(v.detach() if isinstance(v, torch.Tensor) else torch.tensor(v))

    def log_gradients(self, model):
        self.grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))

    def log_images(self, *images):
        self.images.append(torch.cat([im.detach()[:4] for im in images], -1))

    def noise_scale(self):
        g = torch.stack(list(self.grads))
        return (g.var(0).sum() / g.mean(0).pow(2).sum().clamp_min(1e-12)).item()

    def __str__(self):
        return " ".join(f"{k}: {m.median:.4f}" for k, m in self.meters.items())


class Colorizer(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.enc = nn.Conv2d(1, ch, 5, padding=2)
        self.mid = nn.Conv2d(ch, 2 * ch, 3, padding=1)
        self.dec = nn.Conv2d(2 * ch, 3, 3, padding=1)

    def forward(self, gray):
        return torch.sigmoid(self.dec(F.relu(self.mid(F.relu(self.enc(gray))))))


def train_one_epoch(model, optimizer, logger, epoch, steps, print_freq=25):
    for i in range(steps):
        base = torch.rand(6, 3, 6, 6, device="cuda")
        rgb = F.interpolate(base, size=36, mode="bicubic").clamp(0, 1)
        gray = rgb.mean(1, keepdim=True)
        out = model(gray)
        l1, tv = F.l1_loss(out, rgb), (out[..., 1:] - out[..., :-1]).abs().mean()
        loss = l1 + 0.05 * tv
        optimizer.zero_grad()
        loss.backward()
        logger.log_gradients(model)
        optimizer.step()
        logger.update(loss=loss, l1=l1, tv=tv, lr=optimizer.param_groups[0]["lr"])
        logger.log_images(rgb, out)
        if i % print_freq == 0 and logger.meters["loss"].count > 2:
            print(f"Epoch [{epoch}] [{i}/{steps}] {logger} noise: {logger.noise_scale():.2f}")


def main():
    torch.manual_seed(0)
    model = Colorizer().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    logger = MetricLogger()
    for epoch in range(3):
        train_one_epoch(model, optimizer, logger, epoch, steps=50)
        scheduler.step()


if __name__ == "__main__":
    main()
