"""What the calls of modules save for backward, by class and by path."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from oomph.memory.sites import is_user
from oomph.replay.tracking import Tracker

GROWTH_MIN = 1 << 20  # bytes that a module's call saves, or a tensor has, to be named
SAVERS = 3  # modules that are named
SEGMENTS = (2, 4, 8)  # of a sequence


@dataclass
class Calls:
    """What the calls of each class of modules save for backward."""

    tracker: Tracker
    names: dict[int, str]
    found: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    parts: set[str] = field(default_factory=set)
    alone: dict[int, int] = field(default_factory=dict)  # without the calls within
    writers: set[int] = field(default_factory=set)  # that write to what they are given
    count: int = 0
    _open: list[list[int]] = field(default_factory=list)  # then, saved within, version

    def enter(self, module: nn.Module, args: Any) -> None:
        """A call begins."""
        self.count += 1
        self._open.append([self.tracker.ledger.now_bytes, 0, _version(args)])
        self.tracker.enter_call()
        has_time = isinstance(module, (nn.RNNBase, nn.MultiheadAttention))
        if has_time and not module.batch_first and args and args[0].ndim == 3:
            self.tracker.times.add(args[0].shape[0])

    def leave(self, module: nn.Module, args: Any, _: Any) -> None:
        """A call ends."""
        self.tracker.leave_call()
        begun, within, version = self._open.pop() if self._open else (0, 0, 0)
        if version != _version(args):
            self.writers.add(id(module))
        grown = self.tracker.ledger.now_bytes - begun
        if self._open:
            self._open[-1][1] += grown
        if torch.is_grad_enabled() and self.tracker.ledger.runs == "forward":
            name = type(module).__qualname__
            if module.__dict__.get("_modules"):
                self.parts.add(name)
            kept = self.found[name]
            kept[id(module)] = max(kept.get(id(module), 0), grown)
            self.alone[id(module)] = max(self.alone.get(id(module), 0), grown - within)


def _version(args: Any) -> int:
    """How often the first argument was written to."""
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor) or first.is_inference():
        return 0
    return int(first._version)


def names_of_modules(modules: list[nn.Module]) -> dict[int, str]:
    """Of each module its path in the outermost that has it, with ``*`` for numbers."""
    names: dict[int, str] = {}
    for root in _roots(modules):
        for name, module in root.named_modules():
            names.setdefault(id(module), re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name))
    return names


def _roots(modules: list[nn.Module]) -> list[nn.Module]:
    """Those that no other has."""
    inside = {
        id(child) for m in modules for child in m.__dict__.get("_modules", {}).values()
    }
    return [module for module in modules if id(module) not in inside]


def saved_by_class(calls: Calls, modules: list[nn.Module]) -> list[dict[str, Any]]:
    """Of each class of modules what their calls save, and how they are named."""
    known = {id(module): module for module in modules}
    found = []
    for kind, saved in calls.found.items():
        total = sum(saved.values())
        if total >= GROWTH_MIN:
            paths = sorted({calls.names.get(module, "") for module in saved})
            entry = {"class": kind, "saved": total, "paths": paths}
            entry |= {"modules": list(saved), "parts": kind in calls.parts}
            called = [known[module] for module in saved if module in known]
            entry["nested"] = any(_holds_one_of(m, saved) for m in called)
            entry["plain"] = all(_is_plain(module) for module in called)
            found.append(entry)
    return sorted(found, key=lambda entry: -entry["saved"])


def sequence_of(calls: Calls, modules: list[nn.Module]) -> dict[str, Any]:
    """The ``nn.Sequential`` whose call saves most, and how it can be cut.

    Returns:
        The ``module``, its ``path``, and several ``cuts`` into segments: the indices of
        the layers that begin one, and whether they are those of PyTorch's
        ``checkpoint_sequential``. None of these layers writes to what it is given,
        which would be another as it runs again. Empty: there is none.
    """
    saved = {i: size for by in calls.found.values() for i, size in by.items()}
    called = [m for m in modules if isinstance(m, nn.Sequential) and id(m) in saved]
    if not called:
        return {}
    most = max(called, key=lambda module: saved[id(module)])
    layers, cuts = [*most], []
    for count in SEGMENTS:
        even = [i * (len(layers) // count) for i in range(1, count)]
        pure = [_next_pure(layers, i, calls.writers) for i in even]
        if len(layers) >= 2 * count:
            cuts.append((pure, pure == even))
    path = calls.names.get(id(most)) or "model"
    return {"module": id(most), "path": path, "cuts": cuts}


def _next_pure(layers: list[nn.Module], first: int, writers: set[int]) -> int:
    pure = (i for i in range(first, len(layers)) if id(layers[i]) not in writers)
    return next(pure, first)


def saved_by_path(calls: Calls, modules: list[nn.Module]) -> list[tuple[str, str, int]]:
    """Within models of libraries, whose own lines nobody asks for."""
    roots = [module for module in _roots(modules) if not _is_users(module)]
    inside = {id(part): part for root in roots for part in root.modules()}
    found: Counter[tuple[str, str]] = Counter()
    for module, size_bytes in calls.alone.items():
        if size_bytes > 0 and module in inside and calls.names.get(module):
            kind = type(inside[module]).__qualname__
            found[calls.names[module], kind] += size_bytes
    return [(path, kind, size) for (path, kind), size in found.most_common(SAVERS)]


def _is_users(module: nn.Module) -> bool:
    """Whether the user wrote its class, or what it is a container of."""
    kind = type(module)
    if kind.__module__ == nn.Sequential.__module__:
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is None or is_user(file)


def _holds_one_of(module: nn.Module, others: dict[int, int]) -> bool:
    return any(id(m) in others for m in module.modules() if m is not module)


def _is_plain(module: nn.Module) -> bool:
    """Whether it is PyTorch's own, such as a ``Sequential``."""
    return type(module).__module__.startswith("torch.nn.")
