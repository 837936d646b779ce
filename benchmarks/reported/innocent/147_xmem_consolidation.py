# kind: working memory of a video segmenter grows by a frame until it is full, then is consolidated into long-term prototypes whose number is limited too; after hkchengrex/XMem issue 106
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(9)
dev = "cuda"


class MemoryBank:
    def __init__(self, min_frames=3, max_frames=12, prototypes=256, max_long=1280):
        self.min_frames, self.max_frames = min_frames, max_frames
        self.prototypes, self.max_long = prototypes, max_long
        self.frames = []
        self.long_k = self.long_v = None

    def add(self, key, value):
        self.frames.append([key, value, torch.zeros(key.shape[1], device=dev)])
        if len(self.frames) > self.max_frames:
            self.consolidate()

    def consolidate(self):
        old = self.frames[1:-self.min_frames]
        self.frames = self.frames[:1] + self.frames[-self.min_frames:]
        key = torch.cat([f[0] for f in old], 1)
        value = torch.cat([f[1] for f in old], 1)
        usage = torch.cat([f[2] for f in old])
        top = usage.topk(self.prototypes).indices
        affinity = (key[:, top].T @ key / key.shape[0] ** 0.5).softmax(-1)
        proto_k, proto_v = key[:, top], value @ affinity.T
        if self.long_k is not None:
            proto_k = torch.cat([self.long_k, proto_k], 1)
            proto_v = torch.cat([self.long_v, proto_v], 1)
        self.long_k = proto_k[:, -self.max_long:].contiguous()
        self.long_v = proto_v[:, -self.max_long:].contiguous()

    def read(self, query):
        keys = [f[0] for f in self.frames]
        values = [f[1] for f in self.frames]
        if self.long_k is not None:
            keys.insert(0, self.long_k)
            values.insert(0, self.long_v)
        keys, values = torch.cat(keys, 1), torch.cat(values, 1)
        affinity = (keys.T @ query / query.shape[0] ** 0.5).softmax(0)
        used = affinity.sum(1)
        offset = 0 if self.long_k is None else self.long_k.shape[1]
        for frame in self.frames:
            frame[2] += used[offset:offset + frame[2].numel()]
            offset += frame[2].numel()
        return values @ affinity


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Conv2d(3, 32, 8, stride=8)
        self.value = nn.Conv2d(4, 256, 8, stride=8)
        self.decode = nn.Conv2d(256 + 32, 1, 1)

    @torch.inference_mode()
    def forward(self, frame, bank, mask=None):
        key = self.key(frame)
        flat = key.flatten(2)[0]
        if mask is None:
            memory = bank.read(flat).view(1, 256, *key.shape[2:])
            mask = self.decode(torch.cat([memory, key], 1)).sigmoid()
            mask = F.interpolate(mask, frame.shape[-2:])
        bank.add(flat, self.value(torch.cat([frame, mask], 1)).flatten(2)[0])
        return mask


def main():
    net, bank = Segmenter().to(dev).eval(), MemoryBank()
    gen = torch.Generator().manual_seed(3)
    base = torch.rand(1, 3, 160, 192, generator=gen)
    mask = torch.zeros(1, 1, 160, 192, device=dev)
    mask[..., 60:120, 80:160] = 1
    area = 0.0
    for t in range(120):
        frame = (base.roll(t, -1) + 0.05 * torch.rand(1, 3, 160, 192, generator=gen)).to(dev)
        out = net(frame, bank, mask if t == 0 else None)
        area += out.mean().item()
        if t % 30 == 29:
            long = 0 if bank.long_k is None else bank.long_k.shape[1]
            print(f"frame {t + 1}: {len(bank.frames)} working frames, {long} prototypes, area {area / (t + 1):.3f}")


if __name__ == "__main__":
    main()
