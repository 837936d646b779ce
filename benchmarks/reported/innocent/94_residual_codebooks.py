# kind: encoder outputs of many batches are kept until a residual quantizer's codebook is initialised from them by k-means, then dropped; the four stages begin one after another; from lucidrains/vector-quantize-pytorch issue 3 (k-means on the first batches) and HonghuiBao2000/LETTER issue 2 (initialise from all item embeddings)
import torch
from torch import nn
from torch.nn import functional as F


def kmeans(x, k, rounds=4):
    centres = x[torch.randperm(len(x))[:k].to(x.device)].clone()
    for _ in range(rounds):
        nearest = torch.cdist(x[:4096], centres).argmin(-1)
        hot = F.one_hot(nearest, k).to(x.dtype)
        centres = (hot.t() @ x[:4096]) / hot.sum(0).clamp(min=1).unsqueeze(1)
    return centres


class Codebook(nn.Module):
    def __init__(self, size, warm):
        super().__init__()
        self.size, self.warm = size, warm
        self.waiting = []
        self.codes = None

    def forward(self, x):
        flat = x.flatten(0, 1)
        if self.codes is None:
            self.waiting.append(flat.detach())
            if len(self.waiting) < self.warm:
                return None
            self.codes = nn.Parameter(kmeans(torch.cat(self.waiting), self.size))
            self.waiting = []
        index = torch.cdist(flat.detach(), self.codes.detach()).argmin(-1)
        return self.codes.index_select(0, index).view_as(x)


class Codec(nn.Module):
    def __init__(self, stages=4, dim=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(1, 32, 8, 4, 2), nn.ELU(), nn.Conv1d(32, dim, 8, 4, 2))
        self.dec = nn.Sequential(nn.ConvTranspose1d(dim, 32, 8, 4, 2), nn.ELU(), nn.ConvTranspose1d(32, 1, 8, 4, 2))
        self.books = nn.ModuleList(Codebook(128, warm=20) for _ in range(stages))

    def forward(self, wave):
        z = self.enc(wave).transpose(1, 2)
        rest, total, commit = z, torch.zeros_like(z), 0.0
        for book in self.books:
            q = book(rest)
            if q is None:
                break
            commit = commit + F.mse_loss(rest, q.detach()) + F.mse_loss(q, rest.detach())
            total = total + q
            rest = rest - q.detach()
        q = z + (total - z).detach() if self.books[0].codes is not None else z
        return self.dec(q.transpose(1, 2)), commit


def train(steps=220):
    torch.manual_seed(0)
    codec = Codec().cuda()
    opt = torch.optim.Adam(codec.parameters(), lr=1e-3)
    known = {id(p) for p in codec.parameters()}
    for _ in range(steps):
        wave = torch.randn(8, 1, 2048, device="cuda")
        out, commit = codec(wave)
        for p in codec.parameters():
            if id(p) not in known:
                known.add(id(p))
                opt.add_param_group({"params": [p]})
        loss = F.l1_loss(out, wave) + 0.25 * commit
        opt.zero_grad()
        loss.backward()
        opt.step()


if __name__ == "__main__":
    train()
