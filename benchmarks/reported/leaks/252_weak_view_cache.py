# kind: patches of an image are cached in a WeakTensorKeyDictionary under the image so that they go when it goes, but the patches are a view, a view refers to its base, and the base is the key; after python/cpython issue 88846 (value of a WeakKeyDictionary that refers to its key) and pytorch/pytorch PR 90825
"""Moderation service: three heads look at the same patches of an upload.

https://github.com/python/cpython/issues/88846 (reference cycles from a WeakKeyDictionary value to its key),
https://github.com/pytorch/pytorch/pull/90825 (weak dictionaries of tensors)
"""
import random
import time

import torch
import torch.nn as nn
from torch.utils.weak import WeakTensorKeyDictionary


class PatchCache:
    """Cuts each image once; an entry lives as long as its image does."""

    def __init__(self, size=16):
        self.size = size
        self.entries = WeakTensorKeyDictionary()
        self.hits = 0

    def __call__(self, image):
        if image in self.entries:
            self.hits += 1
        else:
            s = self.size
            self.entries[image] = image.unfold(1, s, s).unfold(2, s, s).permute(1, 2, 0, 3, 4)  # LEAK
        return self.entries[image].flatten(0, 1).flatten(1)


class PatchHead(nn.Module):
    def __init__(self, patches, classes, size=16, dim=96):
        super().__init__()
        self.patches = patches
        self.project = nn.Linear(3 * size * size, dim)
        self.score = nn.Linear(dim, 1)
        self.classify = nn.Linear(dim, classes)

    def forward(self, image):
        tokens = torch.relu(self.project(self.patches(image)))  # ALSO
        weight = self.score(tokens).softmax(0)
        return self.classify((weight * tokens).sum(0)).softmax(-1)


class Moderation:
    def __init__(self, device="cuda"):
        self.device = device
        self.patches = PatchCache()
        heads = {"nudity": 3, "violence": 2, "advertisement": 4}
        self.heads = nn.ModuleDict({k: PatchHead(self.patches, n) for k, n in heads.items()}).to(device).eval()
        self.mean = torch.tensor([0.48, 0.46, 0.41], device=device)[:, None, None]

    @torch.no_grad()
    def review(self, upload):
        image = upload.to(self.device).float().div(255) - self.mean
        verdict = {name: head(image).argmax().item() for name, head in self.heads.items()}
        return verdict


def uploads(n, seed=4):
    rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
    for i in range(n):
        time.sleep(0.01)
        height, width = (16 * rng.randint(6, 14) for _ in range(2))
        yield f"upload-{i}", torch.randint(0, 256, (3, height, width), generator=g, dtype=torch.uint8)


def main(n=220):
    torch.manual_seed(0)
    service, flagged = Moderation(), 0
    for i, (name, upload) in enumerate(uploads(n)):
        verdict = service.review(upload)
        flagged += verdict["violence"]
        if i % 40 == 0:
            print(f"{name} of {tuple(upload.shape[1:])}: {verdict}, {service.patches.hits} hits, {flagged} flagged")


if __name__ == "__main__":
    main()
