# CARD: 8GiB
# KNOBS: EVAL_BATCH=32768 BATCH=512 CONTEXT=96 D_MAIN=256 AUTOCAST
# EXPERT: training with batches of 512 is small; evaluate() takes the whole validation/test part as one batch (eval_batch_size 32768), each row with 96 neighbours through the 512-wide T block (12376 x 96 x 512 floats = 2.3 GiB a tensor); a smaller eval_batch_size
# after yandex-research/tabular-dl-tabr issue 8 (otto on an 11 GB K80 of which 8 GiB were left; the fallback to a smaller batch failed there because of an old PyTorch and is left out)
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs


@dataclass(frozen=True)
class Config:
    batch_size: int = int(os.environ.get("BATCH", 512))
    eval_batch_size: int = int(os.environ.get("EVAL_BATCH", 32768))
    context_size: int = int(os.environ.get("CONTEXT", 96))
    d_main: int = int(os.environ.get("D_MAIN", 256))
    d_multiplier: float = 2.0
    n_epochs: int = 1
    steps: int = 4


SIZES = {"train": 39601, "val": 9901, "test": 12376}
N_FEATURES, N_CLASSES = 93, 9


class Model(nn.Module):
    def __init__(self, c, dropout0=0.2, context_dropout=0.2):
        super().__init__()
        d_main, d_block = c.d_main, int(c.d_main * c.d_multiplier)

        def make_block(prenorm):
            return nn.Sequential(*([nn.LayerNorm(d_main)] if prenorm else []), nn.Linear(d_main, d_block), nn.ReLU(),
                                 nn.Dropout(dropout0), nn.Linear(d_block, d_main))

        self.linear = nn.Linear(N_FEATURES, d_main)
        self.blocks0 = nn.ModuleList([make_block(False)])
        self.normalization = nn.LayerNorm(d_main)
        self.label_encoder = nn.Embedding(N_CLASSES, d_main)
        self.K = nn.Linear(d_main, d_main)
        self.T = nn.Sequential(nn.Linear(d_main, d_block), nn.ReLU(), nn.Dropout(dropout0),
                               nn.Linear(d_block, d_main, bias=False))
        self.dropout = nn.Dropout(context_dropout)
        self.blocks1 = nn.ModuleList([make_block(True)])
        self.head = nn.Sequential(nn.LayerNorm(d_main), nn.ReLU(), nn.Linear(d_main, N_CLASSES))

    def _encode(self, x):
        x = self.linear(x)
        for block in self.blocks0:
            x = x + block(x)
        return x, self.K(self.normalization(x))

    @torch.no_grad()
    def search(self, k, candidate_k, n, chunk=1024):
        """exact search, instead of faiss"""
        idx = [torch.cdist(part, candidate_k).topk(n, dim=-1, largest=False).indices for part in k.float().split(chunk)]
        return torch.cat(idx)

    def forward(self, x, candidate_x, candidate_y, context_size, is_train):
        candidate_k = self._encode(candidate_x)[1]
        x, k = self._encode(x)
        context_idx = self.search(k, candidate_k.float(), context_size + int(is_train))
        if is_train:
            context_idx = context_idx[:, 1:]  # the row itself
        context_k = candidate_k[context_idx]
        similarities = (
            -k.square().sum(-1, keepdim=True)
            + (2 * (k[..., None, :] @ context_k.transpose(-1, -2))).squeeze(-2)
            - context_k.square().sum(-1)
        )
        probs = self.dropout(F.softmax(similarities, dim=-1))
        context_y_emb = self.label_encoder(candidate_y[context_idx])
        values = context_y_emb + self.T(k[:, None] - context_k)
        x = x + (probs[:, None].to(values.dtype) @ values).squeeze(1)
        for block in self.blocks1:
            x = x + block(x)
        return self.head(x)


def main():
    C = Config()
    device = torch.device("cuda:0")
    X = {p: torch.randn(n, N_FEATURES, device=device) for p, n in SIZES.items()}
    Y = {p: torch.randint(0, N_CLASSES, (n,), device=device) for p, n in SIZES.items()}
    model = Model(C).to(device)
    knobs.apply(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-5)

    def apply_model(part, idx):
        with knobs.autocast():
            return model(X[part][idx], X["train"], Y["train"], C.context_size, part == "train" and model.training)

    @torch.inference_mode()
    def evaluate(parts, eval_batch_size):
        model.eval()
        metrics = {}
        for part in parts:
            logits = torch.cat([apply_model(part, idx)
                                for idx in torch.arange(SIZES[part], device=device).split(eval_batch_size)])
            metrics[part] = (logits.argmax(-1) == Y[part]).float().mean().item()
        return metrics

    for epoch in range(C.n_epochs):
        model.train()
        for i, idx in enumerate(torch.randperm(SIZES["train"], device=device).split(C.batch_size)):
            optimizer.zero_grad()
            loss = F.cross_entropy(apply_model("train", idx).float(), Y["train"][idx])
            loss.backward()
            optimizer.step()
            if i + 1 == C.steps:
                break
        print(f"epoch {epoch} loss {loss.item():.4f}")
        print("(val)", evaluate(["val", "test"], C.eval_batch_size))


if __name__ == "__main__":
    main()
    print("PEAK", torch.cuda.max_memory_allocated())
