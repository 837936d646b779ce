# kind: https://github.com/facebookresearch/sam2/issues/196: a tracker's memory of frames, old ones are deleted
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"
KEEP = 48


class Encoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, dim, 4, 4), nn.GroupNorm(8, dim), nn.GELU(), nn.Conv2d(dim, dim, 2, 2), nn.GroupNorm(8, dim), nn.GELU()
        )

    def forward(self, x):
        return self.layers(x)


class MemoryTracker(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.encoder = Encoder(dim)
        self.key, self.value = nn.Conv2d(dim, 32, 1), nn.Conv2d(dim, dim, 1)
        self.decoder = nn.Conv2d(2 * dim, 1, 3, padding=1)

    def read(self, query, frames):
        keys = torch.cat([f["key"].flatten(2) for f in frames], -1)
        values = torch.cat([f["value"].flatten(2) for f in frames], -1)
        weights = F.softmax(query.flatten(2).transpose(1, 2) @ keys / 32**0.5, -1)
        return (values @ weights.transpose(1, 2)).view(values.shape[0], -1, *query.shape[-2:])

    @torch.no_grad()
    def track(self, state, index, frame):
        feats = self.encoder(frame)
        k, v = self.key(feats), self.value(feats)
        near = [state["frames"][i] for i in sorted(state["frames"])[-4:]]
        seen = self.read(k, near) if near else torch.zeros_like(v)
        mask = self.decoder(torch.cat([feats, seen], 1))
        state["frames"][index] = {"key": k, "value": v, "mask": mask, "feats": feats}
        for old in [i for i in state["frames"] if i <= index - KEEP]:
            del state["frames"][old]
        return F.interpolate(mask, scale_factor=8) > 0


def main():
    tracker = MemoryTracker().to(device).eval()
    state = {"frames": {}, "sizes": []}
    for index in range(120):
        frame = torch.rand(1, 3, 256, 256, device=device)
        mask = tracker.track(state, index, frame)
        state["sizes"].append(int(mask.sum()))
        if index % 10 == 0:
            print(f"frame {index}: kept {len(state['frames'])} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
