# kind: lru_cache on a method keeps self, so every model built for a fold stays alive; from huggingface/transformers issue 45412
import functools
import gc
import math

import torch
import torch.nn as nn


class DetrEncoder(nn.Module):
    def __init__(self, dim=64, num_queries=10, num_classes=5):
        super().__init__()
        self.dim = dim
        self.backbone = nn.Sequential(nn.Conv2d(3, 32, 4, 4), nn.ReLU(), nn.Conv2d(32, dim, 2, 2))
        self.layer = nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.0, batch_first=True)
        self.queries = nn.Parameter(torch.randn(num_queries, dim) * 0.02)
        self.class_embed = nn.Linear(dim, num_classes)

    @functools.lru_cache(maxsize=None)  # LEAK
    def sine_position(self, h, w, device):
        quarter = self.dim // 4
        omega = torch.exp(-math.log(10000) * torch.arange(quarter, device=device) / quarter)
        y = torch.arange(h, device=device)[:, None] * omega
        x = torch.arange(w, device=device)[:, None] * omega
        y = y[:, None].expand(h, w, quarter)
        x = x[None].expand(h, w, quarter)
        return torch.cat((y.sin(), y.cos(), x.sin(), x.cos()), -1).flatten(0, 1)

    def forward(self, pixel_values):
        feat = self.backbone(pixel_values)
        h, w = feat.shape[-2:]
        pos = self.sine_position(h, w, feat.device)  # ALSO
        tokens = feat.flatten(2).transpose(1, 2) + pos
        queries = self.queries.expand(len(tokens), -1, -1)
        out = self.layer(torch.cat((queries, tokens), 1))
        return self.class_embed(out[:, : queries.size(1)]).mean(1)


def make_data(n=96):
    gen = torch.Generator().manual_seed(5)
    return torch.randn(n, 3, 32, 32, generator=gen), torch.randint(0, 5, (n,), generator=gen)


def run_fold(images, labels, train_idx, val_idx, epochs=1, batch=16):
    model = DetrEncoder().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for chunk in train_idx.split(batch):
            logits = model(images[chunk].cuda())
            loss = nn.functional.cross_entropy(logits, labels[chunk].cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        acc = (model(images[val_idx].cuda()).argmax(-1).cpu() == labels[val_idx]).float().mean()
    return acc.item()


def repeated_kfold(repeats=6, folds=5):
    images, labels = make_data()
    scores = []
    for r in range(repeats):
        perm = torch.randperm(len(images), generator=torch.Generator().manual_seed(r))
        parts = perm.chunk(folds)
        for k in range(folds):
            train_idx = torch.cat([p for i, p in enumerate(parts) if i != k])
            scores.append(run_fold(images, labels, train_idx, parts[k]))
            gc.collect()
            torch.cuda.empty_cache()
    print("cv accuracy %.3f over %d folds" % (sum(scores) / len(scores), len(scores)))


if __name__ == "__main__":
    torch.manual_seed(0)
    repeated_kfold()
