# CARD: 32GiB
# KNOBS: BATCH=64 TRAIN_BATCH=1024 NEG=256 ENTITY_CHUNK SPARSE OPT FUSED
# EXPERT: the filtered ranking compares each query with all entities by an elementwise difference (queries x entities x dim); score the entities in chunks or evaluate smaller batches; the training batch or number of negatives does not matter
# Source: link prediction that trains in little memory and explodes when evaluation starts (pykeen/pykeen 596, uma-pi1/kge 250, Accenture/AmpliGraph 61)
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs


class RotatE(nn.Module):
    def __init__(self, nentity, nrelation, hidden_dim, gamma, sparse):
        super().__init__()
        self.gamma = gamma
        self.entity = nn.Embedding(nentity, hidden_dim * 2, sparse=sparse)
        self.relation = nn.Embedding(nrelation, hidden_dim, sparse=sparse)
        bound = (gamma + 2.0) / hidden_dim
        nn.init.uniform_(self.entity.weight, -bound, bound)
        nn.init.uniform_(self.relation.weight, -bound, bound)
        self.bound = bound

    def distance(self, head, relation, tail):
        re_h, im_h = head.chunk(2, -1)
        re_t, im_t = tail.chunk(2, -1)
        phase = relation / (self.bound / torch.pi)
        re_r, im_r = torch.cos(phase), torch.sin(phase)
        re = re_h * re_r - im_h * im_r - re_t
        im = re_h * im_r + im_h * re_r - im_t
        return self.gamma - torch.stack([re, im], 0).norm(dim=0).sum(-1)

    def forward(self, h, r, t):  # t may be (batch, candidates)
        return self.distance(self.entity(h).unsqueeze(1), self.relation(r).unsqueeze(1), self.entity(t))

    def score_all_tails(self, h, r, chunk=0):
        head, rel = self.entity(h).unsqueeze(1), self.relation(r).unsqueeze(1)
        everything = self.entity.weight.unsqueeze(0)
        parts = everything.split(chunk, 1) if chunk else [everything]
        return torch.cat([self.distance(head, rel, part) for part in parts], 1)


class TripleSource:
    def __init__(self, args):
        self.a = args

    def _triples(self, n):
        return (torch.randint(self.a.nentity, (n,)), torch.randint(self.a.nrelation, (n,)),
                torch.randint(self.a.nentity, (n,)))

    def train_batches(self):
        for _ in range(self.a.max_steps):
            h, r, t = self._triples(self.a.batch_size)
            yield h, r, t, torch.randint(self.a.nentity, (self.a.batch_size, self.a.negatives))

    def test_batches(self):
        for _ in range(2):
            yield self._triples(self.a.test_batch_size)


def train_step(model, optimizers, batch):
    h, r, t, neg = (x.cuda() for x in batch)
    for o in optimizers:
        o.zero_grad()
    positive = F.logsigmoid(model(h, r, t.unsqueeze(1))).mean()
    scores = model(h, r, neg)
    weights = F.softmax(scores, 1).detach()
    negative = (weights * F.logsigmoid(-scores)).sum(1).mean()
    loss = -(positive + negative) / 2
    loss.backward()
    for o in optimizers:
        o.step()
    return loss.item()


@torch.no_grad()
def test(model, source, chunk):
    model.eval()
    ranks = []
    for h, r, t in source.test_batches():
        h, r, t = h.cuda(), r.cuda(), t.cuda()
        score = model.score_all_tails(h, r, chunk)
        target = score.gather(1, t.unsqueeze(1))
        ranks.append(1 + (score > target).sum(1).float())
    ranks = torch.cat(ranks)
    return {"MRR": (1 / ranks).mean().item(), "HITS@10": (ranks <= 10).float().mean().item()}


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("-b", "--batch_size", type=int, default=int(os.environ.get("TRAIN_BATCH", 1024)))
    p.add_argument("-n", "--negatives", type=int, default=int(os.environ.get("NEG", 256)))
    p.add_argument("--test_batch_size", type=int, default=int(os.environ.get("BATCH", 64)))
    p.add_argument("--entity_chunk", type=int, default=int(os.environ.get("ENTITY_CHUNK", "0")))
    p.add_argument("--nentity", type=int, default=123_182)  # YAGO3-10
    p.add_argument("--nrelation", type=int, default=37)
    p.add_argument("-d", "--hidden_dim", type=int, default=250)
    p.add_argument("--max_steps", type=int, default=3)
    a = p.parse_args()
    sparse = os.environ.get("SPARSE", "0") == "1"
    model = RotatE(a.nentity, a.nrelation, a.hidden_dim, 24.0, sparse).cuda()
    optimizers = [torch.optim.SparseAdam(list(model.parameters()), lr=1e-4) if sparse
                  else torch.optim.Adam(model.parameters(), lr=1e-4)]
    source = TripleSource(a)
    for step, batch in enumerate(source.train_batches()):
        print(f"step {step} loss {train_step(model, optimizers, batch):.4f}")
    print("Evaluating on Test Dataset...", test(model, source, a.entity_chunk))
    print("PEAK", torch.cuda.max_memory_allocated())
