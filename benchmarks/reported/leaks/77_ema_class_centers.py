# kind: exponential moving average of a face head's class centres on the sphere, updated with gradients on, so that each average hangs on the one before; from PaddleNLP issue 6003 (no_grad missing in the EMA update) and RaoFoundation/bittensor PR 557
import torch
from torch import nn
import torch.nn.functional as F


class ArcFace(nn.Module):
    def __init__(self, dim, classes, s=24.0, m=0.2):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, dim) * 0.05)
        self.s, self.m = s, m

    def forward(self, emb, label):
        cos = F.linear(F.normalize(emb), F.normalize(self.weight)).clamp(-0.999, 0.999)
        margin = torch.zeros_like(cos).scatter_(1, label[:, None], self.m)
        return self.s * (cos.acos() + margin).cos()


class CenterEma:
    def __init__(self, head, momentum=0.98):
        self.head = head
        self.momentum = momentum
        self.centers = F.normalize(head.weight.detach())

    def update(self):
        now = F.normalize(self.head.weight)
        mixed = self.momentum * self.centers + (1 - self.momentum) * now
        self.centers = F.normalize(mixed)  # LEAK

    @torch.no_grad()
    def identify(self, emb):
        return (F.normalize(emb) @ self.centers.T).argmax(1)


class Faces:
    def __init__(self, classes, dim=256, seed=1):
        g = torch.Generator().manual_seed(seed)
        self.means = torch.randn(classes, dim, generator=g)
        self.classes = classes

    def batch(self, n):
        y = torch.randint(self.classes, (n,))
        return self.means[y] + 0.3 * torch.randn(n, self.means.shape[1]), y


def main(steps=100, classes=400, dim=160):
    torch.manual_seed(0)
    data = Faces(classes)
    backbone = nn.Sequential(nn.Linear(256, 128), nn.PReLU(), nn.Linear(128, dim)).cuda()
    head = ArcFace(dim, classes).cuda()
    ema = CenterEma(head)
    opt = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.05, momentum=0.9, weight_decay=5e-4)
    for step in range(1, steps + 1):
        x, y = data.batch(128)
        x, y = x.cuda(), y.cuda()
        loss = F.cross_entropy(head(backbone(x), y), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update()
        if step % 25 == 0:
            x, y = data.batch(256)
            with torch.no_grad():
                acc = (ema.identify(backbone(x.cuda())).cpu() == y).float().mean().item()
            print(f"step {step} loss {loss.item():.3f} identified {acc:.3f}")


if __name__ == "__main__":
    main()
