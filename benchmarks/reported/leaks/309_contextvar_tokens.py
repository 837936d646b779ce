# kind: https://github.com/generative-computing/mellea/pull/544: request context of a service: tokens of a ContextVar keep each earlier value
import contextvars
from contextlib import ExitStack

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"

current_prompt = contextvars.ContextVar("current_prompt", default=None)
current_user = contextvars.ContextVar("current_user", default="nobody")


class Tracer:
    """Knows which request runs in this context, for log lines and for the reranker."""

    def __init__(self):
        self._entered = []

    def enter(self, user, embedding):
        self._entered.append((current_user.set(user), current_prompt.set(embedding)))  # LEAK

    def describe(self):
        return f"{current_user.get()} (request {len(self._entered)})"


class Retriever(nn.Module):
    def __init__(self, vocab=20000, dim=512, docs=4096):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.register_buffer("index", torch.randn(docs, dim))

    def encode(self, ids):
        out, _ = self.gru(self.tokens(ids))
        return out

    def search(self, emb, k=10):
        pooled = F.normalize(emb.mean(1), dim=-1)
        return (pooled @ self.index.t()).topk(k)


class Reranker(nn.Module):
    def __init__(self, dim=512):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 8, batch_first=True)
        self.score = nn.Linear(dim, 1)

    def forward(self, docs):
        prompt = current_prompt.get()
        mixed, _ = self.attn(docs, prompt, prompt, need_weights=False)
        return self.score(mixed).squeeze(-1)


@torch.inference_mode()
def serve(retriever, reranker, tracer, user, ids):
    emb = retriever.encode(ids)
    tracer.enter(user, emb)
    values, where = retriever.search(emb)
    docs = retriever.index[where]
    order = reranker(docs).argsort(dim=-1, descending=True)
    return torch.gather(where, 1, order).tolist()


def main():
    retriever = Retriever().to(device).eval()
    reranker = Reranker().to(device).eval()
    tracer = Tracer()
    with ExitStack():
        for n in range(120):
            ids = torch.randint(0, 20000, (2, 96), device=device)
            answer = serve(retriever, reranker, tracer, f"user{n % 7}", ids)
            if n % 20 == 0:
                print(tracer.describe(), len(answer), f"{torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
