# CARD: 8GiB
# KNOBS: BATCH=16384 SPARSE OPT
# EXPERT: dense gradients and Adam moments of two tables of 3M x 100; sparse gradients with SparseAdam, or SGD/Adafactor
# SPARSE=1: nn.Embedding(sparse=True) (Adam becomes SparseAdam); OPT=adam|sgd|adagrad|adafactor
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SPARSE = os.environ.get("SPARSE", "0") == "1"
OPT = os.environ.get("OPT", "adam").lower()
BATCH = int(os.environ.get("BATCH", 16384))


class SkipGramModel(nn.Module):
    def __init__(self, vocab_size, emb_dim):
        super().__init__()
        self.u_embeddings = nn.Embedding(vocab_size, emb_dim, sparse=SPARSE)
        self.v_embeddings = nn.Embedding(vocab_size, emb_dim, sparse=SPARSE)
        nn.init.zeros_(self.v_embeddings.weight)

    def forward(self, pos_u, pos_v, neg_v):
        emb_u = self.u_embeddings(pos_u)
        emb_v = self.v_embeddings(pos_v)
        emb_neg = self.v_embeddings(neg_v)
        score = F.logsigmoid((emb_u * emb_v).sum(1).clamp(-10, 10))
        neg = torch.bmm(emb_neg, emb_u.unsqueeze(2)).squeeze(2).clamp(-10, 10)
        return -(score + F.logsigmoid(-neg).sum(1)).mean()


def make_optimizer(model):
    params = list(model.parameters())
    if OPT == "sgd":
        return torch.optim.SGD(params, lr=0.5)
    if OPT == "adagrad":
        return torch.optim.Adagrad(params, lr=0.05)
    if OPT == "adafactor":
        return torch.optim.Adafactor(params, lr=0.01)
    if SPARSE:
        return torch.optim.SparseAdam(params, lr=1e-3)
    return torch.optim.Adam(params, lr=1e-3)


class WalkSampler:
    """Stands for meta-path walks over an academic graph of 3M nodes."""

    def __init__(self, n_nodes, negatives=5):
        self.n_nodes, self.negatives = n_nodes, negatives

    def __call__(self, n):
        u = torch.randint(self.n_nodes, (n,))
        v = torch.randint(self.n_nodes, (n,))
        neg = torch.randint(self.n_nodes, (n, self.negatives))
        return u, v, neg


class Metapath2VecTrainer:
    def __init__(self, n_nodes=3_000_000, dim=100):
        self.device = torch.device("cuda")
        self.sampler = WalkSampler(n_nodes)
        with self.device:
            self.model = SkipGramModel(n_nodes, dim)
        self.optimizer = make_optimizer(self.model)

    def train(self, iterations=4):
        running = 0.0
        for i in range(iterations):
            pos_u, pos_v, neg_v = (t.to(self.device) for t in self.sampler(BATCH))
            loss = self.model(pos_u, pos_v, neg_v)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            running = running * 0.9 + loss.item() * 0.1
            print(f"{i}: loss {running:.4f}")


if __name__ == "__main__":
    Metapath2VecTrainer().train()
    print("PEAK", torch.cuda.max_memory_allocated())
