# kind: soft confusion matrix is accumulated in place from predictions with graph, each += keeps both operands of its product for a backward that never comes; own, in the manner of segmentation evaluation-memory reports
import argparse

import torch
import torch.nn as nn


class SoftConfusion:
    def __init__(self, n_classes, device):
        self.n_classes = n_classes
        self.matrix = torch.zeros(n_classes, n_classes, device=device)

    def add(self, probs, target):
        """probs: (B, C, H, W), target: (B, H, W)"""
        p = probs.permute(0, 2, 3, 1).reshape(-1, self.n_classes)
        t = nn.functional.one_hot(target.reshape(-1), self.n_classes).to(p.dtype)
        self.matrix += t.t() @ p  # LEAK

    def soft_iou(self):
        inter = self.matrix.diagonal()
        union = self.matrix.sum(0) + self.matrix.sum(1) - inter
        return (inter / union.clamp(min=1e-6)).mean().item()


def conv_block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class TinyUNet(nn.Module):
    def __init__(self, classes, ch=8):
        super().__init__()
        self.d1, self.d2 = conv_block(3, ch), conv_block(ch, 2 * ch)
        self.up = nn.ConvTranspose2d(2 * ch, ch, 2, 2)
        self.u1 = conv_block(2 * ch, ch)
        self.out = nn.Conv2d(ch, classes, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(nn.functional.max_pool2d(a, 2))
        return self.out(self.u1(torch.cat([a, self.up(b)], 1)))


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tiles", type=int, default=120)
    ap.add_argument("--size", type=int, default=64)
    ap.add_argument("--classes", type=int, default=6)
    return ap.parse_args()


def tiles(args, device):
    g = torch.Generator(device="cpu").manual_seed(0)
    for i in range(args.tiles):
        img = torch.rand(1, 3, args.size, args.size, generator=g).to(device)
        lab = torch.randint(0, args.classes, (1, args.size, args.size), generator=g).to(device)
        yield i, img, lab


def main():
    args = get_args()
    device = torch.device("cuda")
    model = TinyUNet(args.classes).to(device)
    model.eval()  # inference only, so no gradients (?)
    conf = SoftConfusion(args.classes, device)
    for i, img, lab in tiles(args, device):
        probs = model(img).softmax(1)  # ALSO
        conf.add(probs, lab)  # ALSO
        if (i + 1) % 40 == 0:
            print(f"tile {i + 1}/{args.tiles} allocated {torch.cuda.memory_allocated() >> 20} MiB")
    print(f"soft mIoU {conf.soft_iou():.4f}")


if __name__ == "__main__":
    main()
