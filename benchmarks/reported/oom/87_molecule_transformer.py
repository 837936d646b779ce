# CARD: 6GiB
# KNOBS: BATCH=128 MAX_LEN=88 AUTOCAST CHECKPOINT=EncoderLayer,DecoderLayer CHECKPOINT_PATHS=encoder.layers.*,decoder.layers.* OPT FUSED
# EXPERT: batch of 128 pairs of SMILES through 6+6 layers with written-out attention and 2048-wide feed-forward; smaller --batch-size, AMP, checkpoint the layers
# after MolecularAI/deep-molecular-optimization issue 3
import argparse
import copy
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import knobs

VOCAB, PAD = 124, 0


def clones(module, n):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


def subsequent_mask(size):
    return torch.tril(torch.ones(1, size, size, dtype=torch.uint8))


class MMPDataset(Dataset):
    """source: property changes and SMILES, target: SMILES; of different lengths"""

    def __init__(self, n, max_len):
        self.n, self.max_len = n, max_len

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ls = self.max_len - (i * 7) % 32
        lt = max(10, ls - 20 + i % 5)  # the source starts with the property changes
        return torch.randint(2, VOCAB, (ls,)), torch.randint(2, VOCAB, (lt,))

    @staticmethod
    def collate_fn(batch):
        src = nn.utils.rnn.pad_sequence([b[0] for b in batch], batch_first=True)
        trg = nn.utils.rnn.pad_sequence([b[1] for b in batch], batch_first=True)
        trg_mask = (trg[:, :-1] != PAD).unsqueeze(-2) & subsequent_mask(trg.size(1) - 1).bool()
        return src, (src != PAD).unsqueeze(-2), trg, trg_mask


def attention(query, key, value, mask=None, dropout=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = F.softmax(scores, dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        mask = mask.unsqueeze(1)
        n = query.size(0)
        query, key, value = [lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
                             for lin, x in zip(self.linears, (query, key, value))]
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k)
        return self.linears[-1](x)


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.w_2(self.dropout(F.relu(self.w_1(x))))


class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class SublayerConnection(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.norm, self.dropout = LayerNorm(size), nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn, self.feed_forward = self_attn, feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout), 2)

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, size, self_attn, src_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn, self.src_attn, self.feed_forward = self_attn, src_attn, feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout), 3)

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))
        return self.sublayer[2](x, self.feed_forward)


class Stack(nn.Module):
    def __init__(self, layer, n, size):
        super().__init__()
        self.layers, self.norm = clones(layer, n), LayerNorm(size)

    def forward(self, x, *args):
        for layer in self.layers:
            x = layer(x, *args)
        return self.norm(x)


class Embeddings(nn.Module):
    def __init__(self, d_model, vocab, dropout, max_len=5000):
        super().__init__()
        self.lut, self.d_model, self.dropout = nn.Embedding(vocab, d_model), d_model, nn.Dropout(dropout)
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("pe", pe[None])

    def forward(self, x):
        return self.dropout(self.lut(x) * math.sqrt(self.d_model) + self.pe[:, :x.size(1)])


class EncoderDecoder(nn.Module):
    def __init__(self, vocab, n, d_model, d_ff, h, dropout):
        super().__init__()
        attn, ff = MultiHeadedAttention(h, d_model, dropout), PositionwiseFeedForward(d_model, d_ff, dropout)
        c = copy.deepcopy
        self.encoder = Stack(EncoderLayer(d_model, c(attn), c(ff), dropout), n, d_model)
        self.decoder = Stack(DecoderLayer(d_model, c(attn), c(attn), c(ff), dropout), n, d_model)
        self.src_embed, self.tgt_embed = Embeddings(d_model, vocab, dropout), Embeddings(d_model, vocab, dropout)
        self.generator = nn.Linear(d_model, vocab)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, tgt, src_mask, tgt_mask):
        memory = self.encoder(self.src_embed(src), src_mask)
        return self.decoder(self.tgt_embed(tgt), memory, src_mask, tgt_mask)


class LabelSmoothing(nn.Module):
    def __init__(self, size, smoothing=0.0):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="sum")
        self.size, self.smoothing = size, smoothing

    def forward(self, x, target):
        true_dist = torch.full_like(x, self.smoothing / (self.size - 2))
        true_dist.scatter_(1, target.unsqueeze(1), 1.0 - self.smoothing)
        true_dist[:, PAD] = 0
        true_dist = true_dist * (target != PAD).unsqueeze(1)
        return self.criterion(x, true_dist)


class NoamOpt:
    def __init__(self, model_size, factor, warmup, optimizer):
        self.optimizer, self.warmup, self.factor, self.model_size, self._step = optimizer, warmup, factor, model_size, 0

    def step(self):
        self._step += 1
        rate = self.factor * self.model_size ** -0.5 * min(self._step ** -0.5, self._step * self.warmup ** -1.5)
        for p in self.optimizer.param_groups:
            p["lr"] = rate
        self.optimizer.step()


def train_epoch(loader, model, criterion, optim, device):
    total_loss = total_tokens = 0
    for i, (src, src_mask, trg, trg_mask) in enumerate(loader):
        src, src_mask, trg, trg_mask = (t.to(device) for t in (src, src_mask, trg, trg_mask))
        with knobs.autocast():
            out = model(src, trg[:, :-1], src_mask, trg_mask)
            logp = F.log_softmax(model.generator(out).float(), dim=-1)
        y = trg[:, 1:].contiguous()
        ntokens = (y != PAD).sum().item()
        loss = criterion(logp.view(-1, VOCAB), y.view(-1)) / max(ntokens, 1)
        loss.backward()
        optim.step()
        optim.optimizer.zero_grad()
        total_loss += loss.item() * ntokens
        total_tokens += ntokens
        print(f"batch {i} loss {loss.item():.4f}")
    return total_loss / max(total_tokens, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=int(os.environ.get("BATCH", 128)))
    parser.add_argument("--max-len", type=int, default=int(os.environ.get("MAX_LEN", 88)))
    parser.add_argument("-N", type=int, default=6)
    parser.add_argument("-H", type=int, default=8)
    parser.add_argument("-d-model", type=int, default=256)
    parser.add_argument("-d-ff", type=int, default=2048)
    parser.add_argument("--dropout", type=float, default=0.1)
    opt = parser.parse_args()
    device = torch.device("cuda")
    model = EncoderDecoder(VOCAB, opt.N, opt.d_model, opt.d_ff, opt.H, opt.dropout).to(device)
    knobs.apply(model)
    optim = NoamOpt(opt.d_model, 1.0, 4000, torch.optim.Adam(model.parameters(), lr=0, betas=(0.9, 0.98), eps=1e-9))
    data = MMPDataset(3 * 128, opt.max_len)
    loader = DataLoader(data, batch_size=opt.batch_size, shuffle=False, collate_fn=data.collate_fn)
    print("train loss", train_epoch(loader, model.train(), LabelSmoothing(VOCAB), optim, device))
    print("PEAK", torch.cuda.max_memory_allocated())
