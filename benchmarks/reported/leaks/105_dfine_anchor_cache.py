# kind: anchors cached in a dict keyed by image size, never evicted, and nearly each image has its own size; from LibreYOLO/libreyolo pull request 541
import random

import torch
import torch.nn as nn


class AnchorDecoder(nn.Module):
    def __init__(self, dim=24, num_classes=4, strides=(4, 8, 16), eps=1e-2):
        super().__init__()
        self.strides, self.eps = strides, eps
        self.enc_score = nn.Linear(dim, num_classes)
        self.enc_bbox = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))
        self._anchor_cache = {}

    def generate_anchors(self, sizes, device, grid=0.05):
        out = []
        for lvl, (h, w) in enumerate(sizes):
            gy, gx = torch.meshgrid(torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij")
            cxy = (torch.stack((gx, gy), -1) + 0.5) / torch.tensor([w, h], device=device)
            wh = torch.full_like(cxy, grid * 2.0 ** lvl)
            out.append(torch.cat((cxy, wh), -1).view(1, h * w, 4))
        anchors = torch.cat(out, 1)
        valid = ((anchors > self.eps) & (anchors < 1 - self.eps)).all(-1, keepdim=True)
        anchors = torch.log(anchors / (1 - anchors))
        return torch.where(valid, anchors, torch.full_like(anchors, 1e4)), valid

    def _get_anchors(self, sizes, device):
        key = tuple(sizes)
        entry = self._anchor_cache.get(key)
        if entry is None:
            entry = self.generate_anchors(sizes, device)
            self._anchor_cache[key] = entry  # LEAK
        return entry

    def forward(self, feats):
        sizes = [tuple(f.shape[-2:]) for f in feats]
        memory = torch.cat([f.flatten(2).transpose(1, 2) for f in feats], 1)
        anchors, valid = self._get_anchors(sizes, memory.device)  # ALSO
        memory = torch.where(valid, memory, torch.zeros_like(memory))
        return self.enc_score(memory), (self.enc_bbox(memory) + anchors).sigmoid()


class Detector(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 4, 4)
        self.down = nn.ModuleList([nn.Conv2d(dim, dim, 2, 2), nn.Conv2d(dim, dim, 2, 2)])
        self.decoder = AnchorDecoder(dim)

    def forward(self, images):
        feats = [self.stem(images).relu()]
        for layer in self.down:
            feats.append(layer(feats[-1]).relu())
        return self.decoder(feats)


def rnd_short(short, height):
    """Multi-scale testing: the short side is one of seven lengths."""
    return short + 16 * (height % 7)


class ResizeShortest:
    def __init__(self, short=320, max_size=1280):
        self.short, self.max_size = short, max_size

    def __call__(self, height, width):
        scale = min(rnd_short(self.short, height) / min(height, width), self.max_size / max(height, width))
        return round(height * scale / 16) * 16, round(width * scale / 16) * 16


@torch.no_grad()
def evaluate(model, n_images=110):
    model.eval()
    rnd = random.Random(0)
    resize = ResizeShortest()
    found = 0
    for _ in range(n_images):
        h, w = resize(rnd.randint(200, 900), rnd.randint(200, 900))
        image = torch.rand(1, 3, h, w, device="cuda")
        scores, boxes = model(image)
        top = scores.sigmoid().amax(-1).topk(50)
        found += (top.values > 0.55).sum().item()
    return found


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Detector().cuda()
    print("detections", evaluate(model))
