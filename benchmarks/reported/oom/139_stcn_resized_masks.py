# CARD: 14.76GiB
# KNOBS: BATCH=4 MEM_EVERY=5 RESIZE=bilinear HEIGHT=480 TOP_K=20 OBJECT_CHUNK=0 AUTOCAST CHECKPOINT=BasicBlock,Bottleneck OPT
# EXPERT: five animals are annotated, but the mask was resized bilinearly, so np.unique finds 50 objects: probabilities of 51 x 90 frames (7 GiB, allocated at the start), a value of each object for each memory frame (155 MiB), decoder features of 50 objects at once; training before fits; enough: RESIZE=nearest (the cause), OBJECT_CHUNK=10, MEM_EVERY=20, HEIGHT=360; not enough: MEM_EVERY=10, AUTOCAST, TOP_K=5; no_grad is on; BATCH, CHECKPOINT and OPT belong to training
# after hkchengrex/STCN issues 120 and 3 (https://github.com/hkchengrex/STCN/issues/120: eval_generic on own videos, Colab with 14.76 GiB, "increased the mem-every argument, but it didn't really help"; the cause as in issue 3: masks were resized with anti-aliasing, so np.unique finds far more objects than there are)
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torchvision.models import resnet18, resnet50

import knobs

BATCH = int(os.environ.get("BATCH", 4))
MEM_EVERY = int(os.environ.get("MEM_EVERY", 5))
RESIZE = os.environ.get("RESIZE", "bilinear")
HEIGHT = int(os.environ.get("HEIGHT", 480)) // 16 * 16
WIDTH = HEIGHT * 16 // 9 // 16 * 16
TOP_K = int(os.environ.get("TOP_K", 20))
OBJECT_CHUNK = int(os.environ.get("OBJECT_CHUNK", 0))
FRAMES = 90


class Stages(nn.Module):
    def __init__(self, net, channels):
        super().__init__()
        conv = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.stem = nn.Sequential(conv, net.bn1, net.relu, net.maxpool)
        self.layer1, self.layer2, self.layer3 = net.layer1, net.layer2, net.layer3

    def forward(self, x):
        f4 = self.layer1(self.stem(x))
        f8 = self.layer2(f4)
        return self.layer3(f8), f8, f4


class Up(nn.Module):
    def __init__(self, skip, i, o):
        super().__init__()
        self.skip, self.conv = nn.Conv2d(skip, i, 3, padding=1), nn.Conv2d(i, o, 3, padding=1)

    def forward(self, skip, x):
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return F.relu(self.conv(F.relu(self.skip(skip) + x)))


class STCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.key_encoder, self.value_encoder = Stages(resnet50(), 3), Stages(resnet18(), 4)
        self.key_proj, self.key_comp = nn.Conv2d(1024, 64, 3, padding=1), nn.Conv2d(1024, 512, 3, padding=1)
        self.fuser = nn.Conv2d(1024 + 256, 512, 3, padding=1)
        self.compress = nn.Conv2d(1024, 512, 3, padding=1)
        self.up8, self.up4, self.pred = Up(512, 512, 256), Up(256, 256, 256), nn.Conv2d(256, 1, 3, padding=1)

    def encode_key(self, frame):
        f16, f8, f4 = self.key_encoder(frame)
        return self.key_proj(f16), self.key_comp(f16), f16, f8, f4

    def encode_value(self, frame, f16, masks):
        """One value for each object: frames (k, 3, h, w) and masks (k, 1, h, w)."""
        k = len(masks)
        v = self.value_encoder(torch.cat([frame.expand(k, -1, -1, -1), masks], 1))[0]
        return self.fuser(torch.cat([f16.expand(k, -1, -1, -1), v], 1))

    def decode(self, read, thin, f8, f4):
        k = len(read)
        x = F.relu(self.compress(torch.cat([read, thin.expand(k, -1, -1, -1)], 1)))
        x = self.up4(f4.expand(k, -1, -1, -1), self.up8(f8.expand(k, -1, -1, -1), x))
        return F.interpolate(self.pred(x), scale_factor=4, mode="bilinear", align_corners=False)


def affinity(mk, qk, top):
    """Similarity (L2) of all memory pixels (c, t*h*w) and query pixels (c, h*w), softmax over the best."""
    sim = (2 * mk.t() @ qk - mk.square().sum(0)[:, None]) / 8
    values, index = torch.topk(sim, min(top, len(sim)), dim=0)
    values = (values - values[:1]).exp()
    return torch.zeros_like(sim).scatter_(0, index, (values / values.sum(0, keepdim=True)).to(sim.dtype))


class InferenceCore:
    def __init__(self, net, images, k):
        self.net, self.images, self.k = net, images, k
        self.prob = torch.zeros(k + 1, len(images), 1, HEIGHT, WIDTH, device="cuda")
        self.keys, self.values = [], []

    def memorize(self, t, key, f16):
        frame = self.images[t][None].cuda()
        masks = self.prob[1:, t]
        self.keys.append(key[0].flatten(1))
        self.values.append(self.net.encode_value(frame, f16, masks).flatten(2))

    def segment(self, key, thin, f8, f4):
        weights = affinity(torch.cat(self.keys, 1), key[0].flatten(1), TOP_K)
        out = []
        for objects in torch.arange(self.k).split(OBJECT_CHUNK or self.k):
            a, b = int(objects[0]), int(objects[-1]) + 1
            mem = torch.cat([v[a:b] for v in self.values], 2)
            read = (mem @ weights).unflatten(2, key.shape[-2:])
            out.append(torch.sigmoid(self.net.decode(read, thin, f8, f4)).float())
        return torch.cat(out)

    def interact(self, mask):
        self.prob[1:, 0, 0] = mask.cuda()
        key, _, f16, _, _ = self.net.encode_key(self.images[:1].cuda())
        self.memorize(0, key, f16)
        for t in range(1, len(self.images)):
            key, thin, f16, f8, f4 = self.net.encode_key(self.images[t:t + 1].cuda())
            p = self.segment(key, thin, f8, f4)
            odds = torch.cat([torch.prod(1 - p, 0, keepdim=True), p]).clamp(1e-7, 1 - 1e-7)
            self.prob[:, t] = torch.softmax(torch.log(odds / (1 - odds)), 0)
            if t % MEM_EVERY == 0:
                self.memorize(t, key, f16)
                print(f"frame {t} of {len(self.images)}, MiB {torch.cuda.memory_allocated() >> 20}", flush=True)
        return self.prob.argmax(0)


def first_mask():
    """Annotated at 1080p with the values 10, 20, ... for five animals, resized to the size of the video."""
    full = np.zeros((1080, 1920), np.uint8)
    y, x = np.mgrid[:1080, :1920]
    for k in range(5):
        full[(y - 300 - 90 * k) ** 2 + (x - 300 - 320 * k) ** 2 < (120 + 10 * k) ** 2] = 10 * (k + 1)
    mode = Image.Resampling.NEAREST if RESIZE == "nearest" else Image.Resampling.BILINEAR
    mask = np.array(Image.fromarray(full).resize((WIDTH, HEIGHT), mode))
    labels = np.unique(mask)[1:]
    return torch.from_numpy(np.stack([(mask == n) for n in labels]).astype(np.float32)), len(labels)


def finetune(net, steps=2):
    """Clips of three frames: the second and third from the ones before."""
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-5, weight_decay=1e-7)
    for _ in range(steps):
        frames, masks = torch.rand(BATCH, 3, 3, 384, 384).cuda(), torch.rand(BATCH, 3, 1, 384, 384).round().cuda()
        loss = 0
        with knobs.autocast():
            for f, m in zip(frames, masks):
                keys, thin, f16, f8, f4 = net.encode_key(f)
                value = net.encode_value(f[:1], f16[:1], m[:1]).flatten(2)
                for t in (1, 2):
                    read = value @ affinity(keys[0].flatten(1), keys[t].flatten(1), TOP_K)
                    out = net.decode(read.unflatten(2, keys.shape[-2:]), thin[t:t + 1], f8[t:t + 1], f4[t:t + 1])
                    loss = loss + F.binary_cross_entropy_with_logits(out.float(), m[t:t + 1])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    opt.zero_grad(set_to_none=True)
    print(f"fine-tuned, peak MiB {torch.cuda.max_memory_allocated() >> 20}", flush=True)


def main():
    torch.manual_seed(0)
    net = knobs.apply(STCN().cuda())
    finetune(net.train())
    net.eval()
    mask, k = first_mask()
    with torch.no_grad(), knobs.autocast():
        out = InferenceCore(net, torch.rand(FRAMES, 3, HEIGHT, WIDTH), k).interact(mask)
    print("masks", tuple(out.shape), "objects", k)


if __name__ == "__main__":
    main()
