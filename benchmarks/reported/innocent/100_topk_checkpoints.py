# kind: innocent, the best k state dicts are kept in a heap on the GPU, the worst is dropped; from Lightning ModelCheckpoint(save_top_k), timm CheckpointSaver
import heapq
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F


class CheckpointSaver:
    def __init__(self, model, max_history=6, decreasing=False):
        self.model = model
        self.max_history = max_history
        self.sign = -1 if decreasing else 1
        self.checkpoint_files = []
        self._tie = itertools.count()

    def save_checkpoint(self, epoch, metric):
        entry = (self.sign * metric, next(self._tie), epoch, None)
        if len(self.checkpoint_files) == self.max_history and entry < self.checkpoint_files[0]:
            return None
        state = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        entry = entry[:3] + (state,)
        if len(self.checkpoint_files) < self.max_history:
            heapq.heappush(self.checkpoint_files, entry)
        else:
            heapq.heapreplace(self.checkpoint_files, entry)
        return max(self.checkpoint_files)[2]

    def average(self):
        states = [e[3] for e in self.checkpoint_files]
        return {k: torch.stack([s[k].float() for s in states]).mean(0).to(states[0][k].dtype) for k in states[0]}


class ConvNet(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.c1 = nn.Conv2d(1, 16, 3, 2, 1)
        self.b1 = nn.BatchNorm2d(16)
        self.c2 = nn.Conv2d(16, 32, 3, 2, 1)
        self.fc = nn.Linear(32 * 49, 128)
        self.out = nn.Linear(128, classes)

    def forward(self, x):
        x = F.relu(self.b1(self.c1(x)))
        x = F.relu(self.c2(x)).flatten(1)
        return self.out(F.relu(self.fc(x)))


def batch_of(protos, n=32):
    y = torch.randint(0, len(protos), (n,), device="cuda")
    return protos[y] + 1.5 * torch.randn(n, 1, 28, 28, device="cuda"), y


@torch.no_grad()
def validate(model, protos, batches=2):
    model.eval()
    hits = sum((model(x).argmax(1) == y).float().mean().item() for x, y in (batch_of(protos) for _ in range(batches)))
    model.train()
    return 100 * hits / batches


def main(epochs=36, steps=5):
    torch.manual_seed(0)
    model = ConvNet().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    saver = CheckpointSaver(model)
    protos = torch.randn(8, 1, 28, 28, device="cuda")
    for epoch in range(epochs):
        for _ in range(steps):
            x, y = batch_of(protos)
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        best = saver.save_checkpoint(epoch, validate(model, protos))
        if epoch % 9 == 0:
            print("epoch", epoch, "loss %.3f" % loss.item(), "best epoch", best)
    model.load_state_dict(saver.average())
    print("soup accuracy %.1f" % validate(model, protos))


if __name__ == "__main__":
    main()
