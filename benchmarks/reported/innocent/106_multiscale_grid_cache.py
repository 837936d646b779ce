# kind: innocent, grids are cached per feature size, multi-scale training uses nine sizes only; from Megvii-BaseDetection/YOLOX, ultralytics anchors
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class YoloxHead(nn.Module):
    def __init__(self, dim=16, num_classes=4, strides=(4, 8)):
        super().__init__()
        self.strides = strides
        self.preds = nn.ModuleList(nn.Conv2d(dim, 5 + num_classes, 1) for _ in strides)
        self.grids = {}

    def get_grid(self, level, h, w, device):
        key = (level, h, w)
        if key not in self.grids:
            yv, xv = torch.meshgrid(torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij")
            grid = torch.stack((xv, yv), 2).view(1, h * w, 2).float()
            stride = torch.full((1, h * w, 1), float(self.strides[level]), device=device)
            self.grids[key] = (grid, stride)
        return self.grids[key]

    def forward(self, feats):
        outputs = []
        for level, (conv, f) in enumerate(zip(self.preds, feats)):
            out = conv(f).flatten(2).transpose(1, 2)
            grid, stride = self.get_grid(level, f.shape[2], f.shape[3], f.device)
            xy = (out[..., :2] + grid) * stride
            wh = out[..., 2:4].clamp(max=4).exp() * stride
            outputs.append(torch.cat((xy, wh, out[..., 4:]), -1))
        return torch.cat(outputs, 1)


class Yolox(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 4, 4)
        self.down = nn.Conv2d(dim, dim, 2, 2)
        self.head = YoloxHead(dim)

    def forward(self, x):
        p3 = F.silu(self.stem(x))
        return self.head((p3, F.silu(self.down(p3))))


def losses(outputs, boxes):
    centers = boxes[:, None, :2] + boxes[:, None, 2:] / 2
    dist = (outputs[..., :2] - centers).pow(2).sum(-1)
    near = dist.topk(5, dim=1, largest=False).indices
    target = torch.zeros_like(dist).scatter(1, near, 1.0)
    picked = outputs.gather(1, near[..., None].expand(-1, -1, outputs.size(-1)))
    l_box = F.smooth_l1_loss(picked[..., :4], torch.cat((centers, boxes[:, None, 2:]), -1).expand(-1, 5, -1))
    l_obj = F.binary_cross_entropy_with_logits(outputs[..., 4], target)
    return 0.05 * l_box + l_obj


class Trainer:
    def __init__(self, input_size=320, scale_range=4, max_iter=150):
        self.model = Yolox().cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.sizes = [input_size + 32 * i for i in range(-scale_range, scale_range + 1)]
        self.max_iter = max_iter
        self.input_size = input_size

    def random_resize(self):
        self.input_size = random.choice(self.sizes)

    def train(self):
        self.model.train()
        for it in range(self.max_iter):
            if it % 2 == 0:
                self.random_resize()
            s = self.input_size
            images = torch.rand(2, 3, s, s, device="cuda")
            boxes = torch.rand(2, 4, device="cuda") * s / 2
            loss = losses(self.model(images), boxes)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if it % 50 == 0:
                print(f"iter {it} size {s} loss {loss.item():.3f}")


if __name__ == "__main__":
    random.seed(2)
    torch.manual_seed(2)
    Trainer().train()
