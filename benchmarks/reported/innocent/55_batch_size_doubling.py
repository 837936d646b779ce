# kind: batch size is doubled in place of lowering the learning rate up to a maximum, running statistics of the last batch are kept; from "don't decay the learning rate, increase the batch size" code and AdaBatch
import torch
import torch.nn as nn
import torchvision


class GrowingLoader:
    def __init__(self, n, start, maximum, every):
        self.n, self.size, self.maximum, self.every = n, start, maximum, every

    def __iter__(self):
        for i in range(self.n):
            if i and i % self.every == 0:
                self.size = min(self.maximum, self.size * 2)
            y = torch.randint(10, (self.size,))
            x = torch.randn(self.size, 3, 24, 24) + y.view(-1, 1, 1, 1) / 5
            yield x.cuda(non_blocking=True), y.cuda(non_blocking=True)


class GradientNoise:
    """simple noise scale from the last features and targets"""

    def __init__(self):
        self.last = None
        self.value = 0.0

    def __call__(self, logits, target):
        self.last = (logits.detach(), target)
        err = self.last[0].softmax(1) - nn.functional.one_hot(target, 10)
        self.value = 0.9 * self.value + 0.1 * (err.var(0).sum() / err.mean(0).pow(2).sum().clamp_min(1e-6)).item()


if __name__ == "__main__":
    torch.manual_seed(0)
    net = torchvision.models.shufflenet_v2_x0_5(weights=None, num_classes=10).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    noise, loader = GradientNoise(), GrowingLoader(155, 2, 16, every=12)
    for i, (x, y) in enumerate(loader):
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        noise(logits, y)
        if i % 26 == 0:
            print("it", i, "batch", len(x), "loss %.3f" % loss.item(), "noise scale %.1f" % noise.value)
