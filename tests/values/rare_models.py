"""Small models of rarer kinds, which run the same on any device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WORDS, WIDTH = 211, 32


def next_token_loss(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """That of predicting each token by those before it."""
    return F.cross_entropy(
        scores[:, :-1].reshape(-1, scores.shape[-1]), tokens[:, 1:].reshape(-1)
    )


class Lstm(nn.Module):
    """A language model with dropout between the layers, and tied weights."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = kind(WIDTH, WIDTH, 2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.tokens.weight
        self.has_seed = False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        if self.training and not self.has_seed and x.is_cpu:
            # On a GPU, cuDNN's own generator is seeded from PyTorch's before it drops
            # for the first time.
            torch.empty((), dtype=torch.long).random_()
        self.has_seed = self.has_seed or self.training
        return next_token_loss(self.head(self.layers(x)[0]), tokens)


class Cells(nn.Module):
    """An LSTM and a GRU, one step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.lower, self.upper = nn.LSTMCell(WIDTH, 24), nn.GRUCell(24, 24, bias=False)
        self.head = nn.Linear(24, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        lower, upper, found = None, None, []
        for x in self.tokens(tokens[:, :8]).unbind(1):
            lower = self.lower(x, lower)
            upper = self.upper(lower[0], upper)
            found.append(upper)
        return next_token_loss(self.head(torch.stack(found, 1)), tokens[:, :8])


def attend_one_by_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Causal attention of jagged tensors: PyTorch has none on the CPU."""
    found = []
    for each in zip(*(x.transpose(1, 2).unbind() for x in (q, k, v)), strict=True):
        batch_of_one = (x.transpose(0, 1)[None] for x in each)
        y = F.scaled_dot_product_attention(*batch_of_one, is_causal=True)
        found.append(y[0].transpose(0, 1))
    offsets = q.transpose(1, 2).offsets()
    values = torch.cat(found)
    return torch.nested.nested_tensor_from_jagged(values, offsets).transpose(1, 2)


class Jagged(nn.Module):
    """Attention over sequences of different lengths, in a nested tensor."""

    LENGTHS = (32, 5, 1, 17, 30)

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor((0, *self.LENGTHS), device=tokens.device).cumsum(0)
        flat = tokens.flatten()[: sum(self.LENGTHS)]
        x = self.tokens(torch.nested.nested_tensor_from_jagged(flat, ends))
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        if tokens.is_cuda:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = attend_one_by_one(q, k, v)
        x = x + y.transpose(1, 2).flatten(2)
        return F.cross_entropy(self.head(x).values(), flat.flip(0))


class SkipGram(nn.Module):
    """Embeddings with sparse gradients, close for words that follow each other."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.contexts = nn.Embedding(WORDS, WIDTH, sparse=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words, contexts = self.words(tokens[:, :-1]), self.contexts(tokens[:, 1:])
        near = (words * contexts).sum(-1)
        far = (words * contexts.flip(0)).sum(-1)
        return -(F.logsigmoid(near) + F.logsigmoid(-far)).mean()


class GraphNetwork(nn.Module):
    """Two convolutions over a graph, whose edges are a sparse tensor."""

    NODES = 40

    def __init__(self) -> None:
        super().__init__()
        edges = torch.randint(self.NODES, (2, 150))
        weights = torch.rand(150)
        graph = torch.sparse_coo_tensor(edges, weights, (self.NODES,) * 2).coalesce()
        self.register_buffer("graph", graph, persistent=False)
        self.enter, self.leave = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        x = F.relu(torch.sparse.mm(self.graph, self.enter(nodes)))
        return F.mse_loss(torch.sparse.mm(self.graph, self.leave(x)), nodes)


def nodes() -> torch.Tensor:
    return torch.randn(GraphNetwork.NODES, 16)
