# kind: tree-of-thoughts search, every node holds the keys and values of its path; why it is none: the tree of a question is dropped with the question, a frontier of four is followed
from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


class Node:
    def __init__(self, token, kv, score, parent: Node | None = None):
        self.token, self.kv, self.score, self.parent = token, kv, score, parent

    def path(self):
        return ([] if self.parent is None else self.parent.path()) + [self.token]


class OneLayer(nn.Module):
    def __init__(self, vocab=120, d=64):
        super().__init__()
        self.emb, self.qkv, self.out = nn.Embedding(vocab, d), nn.Linear(d, 3 * d), nn.Linear(d, vocab)

    def forward(self, token, kv):
        q, k, v = self.qkv(self.emb(token)).chunk(3, -1)
        k = torch.cat([kv[0], k[None]]) if kv is not None else k[None]
        v = torch.cat([kv[1], v[None]]) if kv is not None else v[None]
        att = F.softmax(k @ q / 8, 0)
        return F.log_softmax(self.out(att @ v), -1), (k, v)


class Solver:
    def __init__(self, lm, width=4, branch=3, depth=9):
        self.lm, self.width, self.branch, self.depth = lm, width, branch, depth
        self.root = None

    @torch.inference_mode()
    def solve(self, first):
        self.root = Node(first, None, 0.0)
        frontier = [self.root]
        for _ in range(self.depth):
            grown = []
            for node in frontier:
                logp, kv = self.lm(torch.tensor(node.token, device="cuda"), node.kv)
                top = logp.topk(self.branch)
                for lp, tok in zip(top.values.tolist(), top.indices.tolist()):
                    child = Node(tok, kv, node.score + lp, node)
                    grown.append(child)
            frontier = sorted(grown, key=lambda n: -n.score)[:self.width]
        return frontier[0].path()


if __name__ == "__main__":
    torch.manual_seed(0)
    solver = Solver(OneLayer().cuda())
    answers = [solver.solve(q % 120) for q in range(800)]
    print(answers[-1])
