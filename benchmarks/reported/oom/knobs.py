"""Remedies by environment variables. Without any of them set nothing is changed.

AUTOCAST=1          knobs.autocast() is a bf16 autocast (else it does nothing)
CHECKPOINT=A,B      knobs.apply(model): modules of the classes A, B run under
                    torch.utils.checkpoint.checkpoint(use_reentrant=False)
CHECKPOINT_PATHS=a.0,b.*   the same by module path; * stands for one component
DTYPE=bf16          knobs.dtype(), and knobs.apply(model) does model.to(bfloat16)
NO_GRAD=1           knobs.no_grad(function or module) runs it under torch.no_grad()
DATA_ON_CPU=1       knobs.data(tensor) leaves the tensor on the CPU
OPT=sgd|adamw|adafactor   Adam/AdamW/SGD of torch.optim become that one
FUSED=1             Adam/AdamW/SGD get fused=True
CHUNKS=n            F.cross_entropy runs in n chunks of rows, each recomputed in backward
"""
import contextlib
import functools
import inspect
import os

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

_on = lambda name: os.environ.get(name, "0") not in ("", "0")
_list = lambda name: [s for s in os.environ.get(name, "").split(",") if s]


def autocast():
    if _on("AUTOCAST"):
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def dtype():
    return torch.bfloat16 if os.environ.get("DTYPE") == "bf16" else torch.float32


def _match(path, pattern):
    a, b = path.split("."), pattern.split(".")
    return len(a) == len(b) and all(y in ("*", x) for x, y in zip(a, b))


def _wrap(module):
    forward = module.forward

    @functools.wraps(forward)
    def run(*args, **kwargs):
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    module.forward = run


def apply(model):
    classes, paths = _list("CHECKPOINT"), _list("CHECKPOINT_PATHS")
    found = 0
    for name, m in model.named_modules():
        if type(m).__name__ in classes or any(_match(name, p) for p in paths):
            _wrap(m)
            found += 1
    if classes or paths:
        print(f"knobs: {found} modules of {type(model).__name__} are checkpointed")
    if os.environ.get("DTYPE") == "bf16":
        model.to(torch.bfloat16)
    return model


def no_grad(what):
    if not _on("NO_GRAD"):
        return what
    if isinstance(what, torch.nn.Module):
        what.forward = torch.no_grad()(what.forward)
        return what
    return torch.no_grad()(what)


def data(tensor, device="cuda"):
    return tensor if _on("DATA_ON_CPU") else tensor.to(device)


def _patch_optimizers():
    opt, fused = os.environ.get("OPT"), _on("FUSED")
    if not opt and not fused:
        return
    real = {n: getattr(torch.optim, n) for n in ("Adam", "AdamW", "SGD", "Adafactor")}
    want = {"sgd": "SGD", "adamw": "AdamW", "adam": "Adam", "adafactor": "Adafactor", None: None}[opt or None]

    def maker(name):
        cls = real[want or name]

        @functools.wraps(real[name], updated=())
        def make(params, *args, **kwargs):
            if args:
                kwargs["lr"] = args[0]
            known = inspect.signature(cls.__init__).parameters
            kwargs = {k: v for k, v in kwargs.items() if k in known}
            if cls is not real[name] and name == "SGD":
                kwargs = {k: v for k, v in kwargs.items() if k in ("lr", "weight_decay")}
            if fused and "fused" in known:
                kwargs["fused"] = True
            return cls(params, **kwargs)

        return make

    for n in ("Adam", "AdamW", "SGD"):
        setattr(torch.optim, n, maker(n))


def _patch_cross_entropy():
    n = int(os.environ.get("CHUNKS", "0"))
    if n < 2:
        return
    plain = F.cross_entropy

    @functools.wraps(plain)
    def cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100,
                      reduce=None, reduction="mean", label_smoothing=0.0):
        if (input.dim() != 2 or target.dim() != 1 or input.shape[0] < n or weight is not None
                or reduction not in ("mean", "sum") or label_smoothing or not torch.is_grad_enabled()):
            return plain(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)

        def part(x, y):
            return plain(x, y, ignore_index=ignore_index, reduction="sum")

        total = 0
        for x, y in zip(input.chunk(n), target.chunk(n)):
            total = total + checkpoint(part, x, y, use_reentrant=False)
        if reduction == "mean":
            total = total / (target != ignore_index).sum()
        return total

    F.cross_entropy = torch.nn.functional.cross_entropy = cross_entropy


_patch_optimizers()
_patch_cross_entropy()
