# kind: validation total accumulates loss tensors with their graphs, no no_grad; from facebookarchive/loop issue 57
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class Loop(nn.Module):
    def __init__(self, vocab=60, speakers=12, hidden=96, mel=63):
        super().__init__()
        self.char = nn.Embedding(vocab, hidden)
        self.speaker = nn.Embedding(speakers, hidden)
        self.encoder = nn.GRU(hidden, hidden, batch_first=True)
        self.decoder = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.Tanh(), nn.Linear(2 * hidden, mel))

    def forward(self, text, spkr):
        x = self.char(text) + self.speaker(spkr).unsqueeze(1)
        out, attn = self.encoder(x)
        return self.decoder(out), attn


class MaskedMSE(nn.Module):
    def forward(self, pred, target, lengths):
        mask = (torch.arange(target.size(1), device=target.device)[None] < lengths[:, None]).float()
        diff = F.mse_loss(pred, target, reduction="none").mean(-1)
        return (diff * mask).sum() / mask.sum()


class VCTKLoader:
    def __init__(self, n_batches, batch=8, seed=0):
        self.n_batches, self.batch, self.seed = n_batches, batch, seed

    def __len__(self):
        return self.n_batches

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.seed)
        rnd = random.Random(self.seed)
        for _ in range(self.n_batches):
            t = rnd.randint(24, 36)
            text = torch.randint(0, 60, (self.batch, t), generator=gen)
            feat = torch.randn(self.batch, t, 63, generator=gen)
            spkr = torch.randint(0, 12, (self.batch,), generator=gen)
            lengths = torch.randint(t // 2, t + 1, (self.batch,), generator=gen)
            yield [x.to("cuda") for x in (text, feat, spkr, lengths)]


def train(model, criterion, optimizer, loader, epoch):
    model.train()
    total = 0.0
    for text, feat, spkr, lengths in loader:
        optimizer.zero_grad()
        output, _ = model(text, spkr)
        loss = criterion(output, feat, lengths)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def evaluate(model, criterion, loader, epoch):
    model.eval()
    total = 0
    for text, feat, spkr, lengths in loader:
        output, _ = model(text, spkr)
        loss = criterion(output, feat, lengths)
        total += loss  # LEAK
    avg = total / len(loader)
    print(f"====> Valid (loss {avg.item():.3f}) epoch {epoch}")
    return avg.item()


def main():
    torch.manual_seed(1)
    model = Loop().cuda()
    criterion = MaskedMSE().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train_loader, valid_loader = VCTKLoader(60), VCTKLoader(200, seed=9)
    best = float("inf")
    loss = train(model, criterion, optimizer, train_loader, 1)
    print(f"====> Train (loss {loss:.3f}) epoch 1")
    best = min(best, evaluate(model, criterion, valid_loader, 1))
    print("best", best)


if __name__ == "__main__":
    main()
