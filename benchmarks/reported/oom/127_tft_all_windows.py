# CARD: 6GiB
# KNOBS: BATCH=256 VALID_WINDOWS=0 STEP_SIZE=4 HIDDEN=128 INPUT=192 AUTOCAST CHECKPOINT=VariableSelection,GRN OPT
# EXPERT: training on 256 windows fits (3.7 GiB); validation_step sends all 2857 windows of a series at once through the network: attention scores of 2857 x 4 x 288 x 288 floats (3.5 GiB) in two or three copies; validate some hundred windows at a time (VALID_WINDOWS=256), a larger STEP_SIZE, a shorter INPUT; not enough: HIDDEN=64 (the scores do not depend on it), AUTOCAST (softmax is fp32, more copies), BATCH, CHECKPOINT and OPT (the peak is in validation, without gradients)
# after Nixtla/neuralforecast issue 543 (https://github.com/Nixtla/neuralforecast/issues/543), TFT on ETTm2; the card there had 32 GB
import os

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import knobs

BATCH = int(os.environ.get("BATCH", 256))
VALID_WINDOWS = int(os.environ.get("VALID_WINDOWS", 0))
STEP_SIZE = int(os.environ.get("STEP_SIZE", 4))
HIDDEN = int(os.environ.get("HIDDEN", 128))
INPUT = int(os.environ.get("INPUT", 192))
HORIZON, VARIABLES, LENGTH, VALID = 96, 6, 57600, 11520


class ETTm2(Dataset):
    """One item is the whole frame of a series (target and exogenous columns); windows are cut on the GPU."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(LENGTH, VARIABLES, generator=g)


class GRN(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin_a, self.lin_i, self.glu = nn.Linear(i, o), nn.Linear(o, o), nn.Linear(o, 2 * o)
        self.skip = nn.Linear(i, o) if i != o else nn.Identity()
        self.norm = nn.LayerNorm(o)

    def forward(self, x):
        h = self.lin_i(F.elu(self.lin_a(x)))
        return self.norm(self.skip(x) + F.glu(self.glu(F.dropout(h, 0.1, self.training)), dim=-1))


class VariableSelection(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Parameter(torch.randn(VARIABLES, HIDDEN) * 0.1)
        self.joint = GRN(HIDDEN * VARIABLES, VARIABLES)
        self.vars = nn.ModuleList([GRN(HIDDEN, HIDDEN) for _ in range(VARIABLES)])

    def forward(self, x):
        x = x.unsqueeze(-1) * self.embed
        weights = self.joint(x.flatten(-2)).softmax(-1).unsqueeze(-1)
        new = torch.stack([g(x[..., i, :]) for i, g in enumerate(self.vars)], dim=-2)
        return (new * weights).sum(-2)


class InterpretableAttention(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads, self.dim = heads, HIDDEN // heads
        self.qk, self.v = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(HIDDEN, self.dim)
        self.out = nn.Linear(self.dim, HIDDEN)

    def forward(self, x):
        q, k = self.qk(x).chunk(2, dim=-1)
        q, k = (t.unflatten(-1, (self.heads, self.dim)).transpose(1, 2) for t in (q, k))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        score = (q @ k.transpose(-1, -2) * self.dim ** -0.5).masked_fill(mask, -1e4).softmax(-1)
        return self.out((score @ self.v(x).unsqueeze(1)).mean(1))


class TFT(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.select = VariableSelection()
        self.encoder, self.decoder = (nn.LSTM(HIDDEN, HIDDEN, batch_first=True) for _ in range(2))
        self.enrich, self.attention, self.feed = GRN(HIDDEN, HIDDEN), InterpretableAttention(), GRN(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, 3)

    def forward(self, windows):
        x = windows.clone()
        x[:, INPUT:, 0] = 0
        x = self.select(x)
        past, state = self.encoder(x[:, :INPUT])
        future, _ = self.decoder(x[:, INPUT:], state)
        h = self.enrich(torch.cat([past, future], dim=1) + x)
        return self.head(self.feed(h + self.attention(h))[:, INPUT:])

    def quantile_loss(self, out, y):
        q = torch.tensor([0.1, 0.5, 0.9], device=y.device)
        e = y.unsqueeze(-1) - out.float()
        return torch.maximum(q * e, (q - 1) * e).mean()

    def windows(self, frame, step):
        return frame.unfold(0, INPUT + HORIZON, step).transpose(1, 2)

    def training_step(self, batch, _):
        all_windows = self.windows(batch[0, :-VALID], 1)
        w = all_windows[torch.randint(0, len(all_windows), (BATCH,), device=self.device)]
        with knobs.autocast():
            return self.quantile_loss(self(w), w[:, INPUT:, 0])

    def validation_step(self, batch, _):
        w = self.windows(batch[0, -VALID - INPUT:], STEP_SIZE)
        losses = []
        for part in w.split(VALID_WINDOWS or len(w)):
            with knobs.autocast():
                losses.append(self.quantile_loss(self(part), part[:, INPUT:, 0]))
        self.log("val_loss", torch.stack(losses).mean(), prog_bar=False)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(0, verbose=False)
    model = knobs.apply(TFT())
    trainer = L.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(model, DataLoader(ETTm2(), batch_size=1), DataLoader(ETTm2(), batch_size=1))
    print("val_loss", float(trainer.callback_metrics["val_loss"]))


if __name__ == "__main__":
    main()
