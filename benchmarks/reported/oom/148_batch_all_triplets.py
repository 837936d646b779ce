# CARD: 12GiB
# KNOBS: BATCH=1024 CHUNKS=1
# EXPERT: the batch-all triplet loss builds B x B x B tensors (4 GiB each in fp32); smaller batch, or anchors by chunks that are recomputed in backward
# CHUNKS=<int>: the loss over so many groups of anchors, each under torch.utils.checkpoint
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

BATCH = int(os.environ.get("BATCH", 1024))
CHUNKS = int(os.environ.get("CHUNKS", 1))


def pairwise_distances(a, b):
    sq = a.pow(2).sum(1, keepdim=True) - 2 * a @ b.t() + b.pow(2).sum(1)
    return sq.clamp(min=1e-12).sqrt()


def triplet_terms(anchors, anchor_labels, anchor_ids, emb, labels, margin):
    """Sum of the losses and number of the positive ones, for some anchors."""
    dist = pairwise_distances(anchors, emb)
    loss = dist.unsqueeze(2) - dist.unsqueeze(1) + margin
    same = anchor_labels[:, None] == labels[None, :]
    self_pair = anchor_ids[:, None] == torch.arange(len(labels), device=labels.device)
    positive = same & ~self_pair
    mask = positive.unsqueeze(2) & ~same.unsqueeze(1)
    loss = mask.float() * loss
    loss = F.relu(loss)
    active = (loss > 1e-16).float().sum()
    return loss.sum(), active


def batch_all_triplet_loss(emb, labels, margin=0.2):
    ids = torch.arange(len(emb), device=emb.device)
    total = active = 0.0
    for part in ids.chunk(CHUNKS):
        args = (emb[part], labels[part], part, emb, labels, margin)
        if CHUNKS > 1:
            s, n = checkpoint(triplet_terms, *args, use_reentrant=False)
        else:
            s, n = triplet_terms(*args)
        total, active = total + s, active + n
    return total / (active + 1e-16), active


class OmniglotEmbedding(nn.Module):
    def __init__(self, out=64, ch=32):
        super().__init__()
        layers, c = [], 1
        for _ in range(3):
            layers += [nn.Conv2d(c, ch, 3, padding=1), nn.BatchNorm2d(ch), nn.ReLU(), nn.MaxPool2d(2)]
            c = ch
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(ch * 9, out))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def main(steps=3):
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = OmniglotEmbedding().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        images = torch.rand(BATCH, 1, 28, 28, device=device)
        labels = torch.arange(BATCH, device=device) // 4
        loss, active = batch_all_triplet_loss(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f} active {active.item():.0f}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
