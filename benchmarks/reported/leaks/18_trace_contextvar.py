# kind: spans of a tracer pile up in a ContextVar, small tensors; from reports on request tracing in embedding services
import contextvars
import time
from contextlib import contextmanager
import torch
from torch import nn

_spans = contextvars.ContextVar("spans", default=())


@contextmanager
def span(name, **attributes):
    record = {"name": name, "start": time.perf_counter(), **attributes}
    try:
        yield record
    finally:
        record["seconds"] = time.perf_counter() - record["start"]
        _spans.set(_spans.get() + (record,))  # LEAK


class Encoder(nn.Module):
    def __init__(self, vocab=1000, dim=96, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True) for _ in range(layers))

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h)
        return h


class EmbeddingService:
    def __init__(self):
        self.model = Encoder().cuda().eval()

    @torch.no_grad()
    def embed(self, texts):
        with span("tokenize", n=len(texts)):
            ids = torch.tensor([[hash((t, i)) % 1000 for i in range(48)] for t in texts]).cuda()
        with span("encode", tokens=ids.numel()) as s:
            hidden = self.model(ids)
            s["hidden"] = hidden  # ALSO
        with span("pool"):
            v = nn.functional.normalize(hidden.mean(dim=1), dim=-1)
        return v.cpu()


if __name__ == "__main__":
    service = EmbeddingService()
    n = 0
    for request in range(150):
        vecs = service.embed([f"document {request} part {j}" for j in range(4)])
        n += len(vecs)
    slow = max(_spans.get(), key=lambda r: r["seconds"])
    print(n, "texts embedded, slowest span:", slow["name"], f"{slow['seconds'] * 1e3:.1f} ms")
