# CARD: 12GiB
# KNOBS: BATCH=64 VAL_BATCH=128 N_FEATURES=1000 SDPA ATTN_DROPOUT=0.1 AUTOCAST CHECKPOINT=TransformerEncoderBlock,MultiHeadAttention CHECKPOINT_PATHS=backbone.transformer_blocks.* OPT FUSED
# EXPERT: every column is a token, 1000 columns give 64 x 8 heads x 1001 x 1001 attention scores (1.9 GiB) that each of 6 blocks keeps after softmax and after dropout; 500 columns, batch 16, fused attention, or checkpoint the blocks; batch 32, bf16 autocast (softmax stays fp32), no attention dropout or another optimizer is not enough, the number of rows and the validation batch do not matter
# Source: pytorch-tabular/pytorch_tabular 176 (FT-Transformer on 1500 numeric columns, batch 64, 12 GB, the same error whatever the number of rows), autogluon/autogluon 2389 (skip it above 300 features); written by hand
import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import knobs


def env(name, default, kind=int):
    return kind(os.environ.get(name, default))


class FeatureTokenizer(nn.Module):
    def __init__(self, n_num, cardinalities, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_num, dim).uniform_(-dim ** -0.5, dim ** -0.5))
        self.bias = nn.Parameter(torch.zeros(n_num, dim))
        self.cat = nn.ModuleList(nn.Embedding(c, dim) for c in cardinalities)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, num, cat):
        tokens = [self.cls.expand(num.shape[0], -1, -1), num.unsqueeze(-1) * self.weight + self.bias]
        tokens += [e(cat[:, i]).unsqueeze(1) for i, e in enumerate(self.cat)]
        return torch.cat(tokens, 1)


class MultiHeadAttention(nn.Module):
    def __init__(self, dim, heads, head_dim, dropout):
        super().__init__()
        self.heads, self.scale = heads, head_dim ** -0.5
        self.to_qkv = nn.Linear(dim, heads * head_dim * 3, bias=False)
        self.to_out = nn.Linear(heads * head_dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.fused = os.environ.get("SDPA", "0") == "1"

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        if self.fused:
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout.p if self.training else 0.0)
        else:
            sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
            attn = self.dropout(sim.softmax(dim=-1))
            out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


class GEGLU(nn.Module):
    def forward(self, x):
        x, gates = x.chunk(2, dim=-1)
        return x * F.gelu(gates)


class TransformerEncoderBlock(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.mha = MultiHeadAttention(dim, heads, dim // 2, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, dim * 4 * 2), GEGLU(), nn.Dropout(0.1), nn.Linear(dim * 4, dim))

    def forward(self, x):
        x = self.norm1(x + self.mha(x))
        return self.norm2(x + self.ff(x))


class FTTransformerBackbone(nn.Module):
    def __init__(self, n_num, cards, dim=32, heads=8, blocks=6):
        super().__init__()
        self.tokenizer = FeatureTokenizer(n_num, cards, dim)
        self.transformer_blocks = nn.ModuleList(TransformerEncoderBlock(dim, heads, env("ATTN_DROPOUT", 0.1, float)) for _ in range(blocks))

    def forward(self, num, cat):
        x = self.tokenizer(num, cat)
        for block in self.transformer_blocks:
            x = block(x)
        return x[:, 0]


class FTTransformer(nn.Module):
    def __init__(self, n_num, cards, targets):
        super().__init__()
        self.backbone = FTTransformerBackbone(n_num, cards)
        self.head = nn.Sequential(nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, targets))

    def forward(self, num, cat):
        return self.head(self.backbone(num, cat))


class EarlyStopping:
    def __init__(self, patience=3):
        self.patience, self.best, self.bad, self.state = patience, float("inf"), 0, None

    def __call__(self, value, model):
        if value < self.best:
            self.best, self.bad, self.state = value, 0, copy.deepcopy({k: v.cpu() for k, v in model.state_dict().items()})
        else:
            self.bad += 1
        return self.bad >= self.patience


class TabularModel:
    def __init__(self, n_num, cards, targets):
        self.model = knobs.apply(FTTransformer(n_num, cards, targets).cuda())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, factor=0.5, patience=2)
        self.stopper = EarlyStopping()

    def step(self, batch):
        num, cat, y = (t.cuda(non_blocking=True) for t in batch)
        with knobs.autocast():
            pred = self.model(num, cat)
        return F.mse_loss(pred.float(), y)

    def fit(self, train, valid, epochs):
        train_dl = DataLoader(train, env("BATCH", 64), shuffle=True, drop_last=True)
        valid_dl = DataLoader(valid, env("VAL_BATCH", 128))
        for epoch in range(epochs):
            self.model.train()
            running = 0.0
            for batch in train_dl:
                loss = self.step(batch)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_value_(self.model.parameters(), 1.0)
                self.optimizer.step()
                running += loss.item()
            self.model.eval()
            with torch.no_grad():
                value = sum(self.step(b).item() for b in valid_dl) / len(valid_dl)
            self.plateau.step(value)
            print(f"epoch {epoch} train {running / len(train_dl):.4f} valid {value:.4f}")
            if self.stopper(value, self.model):
                break


def table(rows, n_num, cards):
    cat = torch.stack([torch.randint(0, c, (rows,)) for c in cards], 1)
    return TensorDataset(torch.randn(rows, n_num), cat, torch.randn(rows, 3))


if __name__ == "__main__":
    torch.manual_seed(0)
    cards = [5, 12, 2, 31]
    n_num = env("N_FEATURES", 1000) - len(cards)
    tabular = TabularModel(n_num, cards, 3)
    tabular.fit(table(2 * 64, n_num, cards), table(256, n_num, cards), epochs=2)
