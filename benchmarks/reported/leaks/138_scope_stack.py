# kind: a generator-based context manager pushes the request's conditioning onto a stack and pops it after the yield, requests that fail in the body skip the pop; after jina-ai/serve issue 3739
from contextlib import contextmanager

import torch
from torch import nn

torch.manual_seed(2)
dev = torch.device("cuda")

_SCOPES = []


@contextmanager
def conditioning(**tensors):
    _SCOPES.append(tensors)  # LEAK
    yield tensors
    _SCOPES.pop()


def current(name, default=None):
    for scope in reversed(_SCOPES):
        if name in scope:
            return scope[name]
    return default


class ConditionedBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, dim)

    def forward(self, x):
        hint = current("hint")
        h = self.fc(self.norm(x))
        if hint is not None:
            h = h + hint[: x.shape[0]].mean(1, keepdim=True)
        return x + torch.nn.functional.gelu(h)


class Painter(nn.Module):
    MAX_TOKENS = 96

    def __init__(self, dim=256):
        super().__init__()
        self.embed = nn.Embedding(512, dim)
        self.blocks = nn.ModuleList(ConditionedBlock(dim) for _ in range(6))
        self.out = nn.Linear(dim, 16)

    def forward(self, ids):
        if ids.shape[1] > self.MAX_TOKENS:
            raise ValueError(f"prompt of {ids.shape[1]} tokens is too long (max {self.MAX_TOKENS})")
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean(1))


@torch.inference_mode()
def handle(model, request):
    ids = torch.tensor([request["tokens"]], device=dev)
    hint = torch.full((1, 2048, 256), float(request["strength"]), device=dev)
    with conditioning(hint=hint, request_id=request["id"]):  # ALSO
        votes = torch.stack([model(ids.roll(k, 1)).softmax(-1) for k in range(6)])
        return votes.mean(0).argmax(-1).item()


def requests(n):
    gen = torch.Generator().manual_seed(5)
    for i in range(n):
        length = int(torch.randint(20, 130, (1,), generator=gen))
        tokens = torch.randint(0, 512, (length,), generator=gen).tolist()
        yield {"id": i, "tokens": tokens, "strength": (i % 10) / 10}


def serve():
    model = Painter().to(dev).eval()
    ok = failed = 0
    for request in requests(280):
        try:
            handle(model, request)
            ok += 1
        except ValueError as err:
            failed += 1
            if failed % 25 == 0:
                print("rejected:", err)
    print(f"{ok} answered, {failed} rejected")


serve()
