# CARD: 8GiB
# KNOBS: BATCH=512 EVAL_BATCH=1024 NO_GRAD CPU_OUTPUTS TOPK SPARSE
# EXPERT: dies in the first evaluation, training is small: scores of 6144 users for 240000 items stay in a list on the GPU (5.5 GiB) and, without no_grad, the graph of each batch as well (5.3 GiB); enough: NO_GRAD, TOPK (keeps 10 indices, drops the graph), CPU_OUTPUTS (detached, drops the graph); not enough: EVAL_BATCH=256, BATCH=64, SPARSE
# Source: RUCAIBox/RecBole 1866 (full_sort_topk on a large item set runs out of memory, 80 GB A100; scores of all items; answer: filter items or sample) and 1887 (SASRec, full evaluation); plain PyTorch
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

BATCH = int(os.environ.get("BATCH", 512))
EVAL_BATCH = int(os.environ.get("EVAL_BATCH", 1024))
CPU_OUTPUTS = os.environ.get("CPU_OUTPUTS") == "1"
TOPK = os.environ.get("TOPK") == "1"
SPARSE = os.environ.get("SPARSE") == "1"
ITEMS, EVAL_USERS, LEN, DIM = 240_000, 6144, 100, 64


class SASRec(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS, DIM, padding_idx=0, sparse=SPARSE)
        self.position = nn.Embedding(LEN, DIM)
        self.norm, self.drop = nn.LayerNorm(DIM), nn.Dropout(0.5)
        layer = nn.TransformerEncoderLayer(DIM, 2, 256, dropout=0.5, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, seq):
        x = self.item(seq) + self.position(torch.arange(LEN, device=seq.device))
        mask = nn.Transformer.generate_square_subsequent_mask(LEN, device=seq.device)
        return self.encoder(self.drop(self.norm(x)), mask=mask, is_causal=True)[:, -1]

    def bpr_loss(self, seq, pos, neg):
        out = self(seq)
        score_pos = (out * self.item(pos)).sum(-1)
        score_neg = (out * self.item(neg)).sum(-1)
        return -F.logsigmoid(score_pos - score_neg).mean()

    def full_sort_predict(self, seq):
        return self(seq) @ self.item.weight.t()


def evaluate(model):
    """Recall@10 and MRR@10 over all items."""
    model.eval()
    collected, targets = [], []
    predict = knobs.no_grad(model.full_sort_predict)
    for start in range(0, EVAL_USERS, EVAL_BATCH):
        n = min(EVAL_BATCH, EVAL_USERS - start)
        seq = torch.randint(1, ITEMS, (n, LEN)).cuda()
        scores = predict(seq)
        scores[:, 0] = float("-inf")  # padding item
        if TOPK:
            scores = scores.topk(10, dim=-1).indices
        collected.append(scores.detach().cpu() if CPU_OUTPUTS else scores)
        targets.append(torch.randint(1, ITEMS, (n,)).to(collected[-1].device))
    targets = torch.cat(targets)
    if TOPK:
        top = torch.cat(collected)
    else:
        top = torch.cat([s.topk(10, dim=-1).indices for s in collected])
    hit = (top == targets[:, None]).float()
    mrr = (hit / torch.arange(1, 11, device=hit.device)).sum(1).mean()
    return hit.sum(1).mean().item(), mrr.item()


def main():
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = SASRec()
    knobs.apply(model)
    if SPARSE:
        dense = [p for n, p in model.named_parameters() if n != "item.weight"]
        optimizers = [torch.optim.SparseAdam([model.item.weight], lr=1e-3), torch.optim.Adam(dense, lr=1e-3)]
    else:
        optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3)]
    for epoch in range(2):
        model.train()
        for step in range(3):
            seq = torch.randint(1, ITEMS, (BATCH, LEN)).cuda()
            pos, neg = torch.randint(1, ITEMS, (2, BATCH)).cuda()
            loss = model.bpr_loss(seq, pos, neg)
            for o in optimizers:
                o.zero_grad()
            loss.backward()
            for o in optimizers:
                o.step()
            print(f"epoch {epoch} step {step}: loss {loss.item():.4f}")
        recall, mrr = evaluate(model)
        print(f"eval after epoch {epoch}: recall@10 {recall:.4f}, mrr@10 {mrr:.4f}")


if __name__ == "__main__":
    main()
