"""A step as it runs without a limit: its operators, and the memory that these make.

The device's clock tells the operators' times, the allocator the bytes in use.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from watch import event

GIB = 1 << 30
SMALL_BYTES = 1 << 20  # what oomph does not send
COPIED_BYTES = 256 << 20


@dataclass
class Storage:
    """What an operator of the step made.

    Attributes:
        touches: The operators that read or wrote it, in order; the first made it.
        recompute_ms: Time of those that wrote it, shared among all that these wrote.
    """

    bytes: int
    touches: list[int] = field(default_factory=list)
    recompute_ms: float = 0.0

    def is_used(self, first: int, end: int) -> bool:
        """Whether one of these operators reads or writes it."""
        return any(first <= operator < end for operator in self.touches)


@dataclass(frozen=True)
class Record:
    """A step of training.

    Attributes:
        operators_ms: Time of each operator, with that until the next begins.
        used_bytes: The most bytes in use during each.
        backward: Index of the first operator of backward.
        optimizer: Index of the first operator of the optimizer.
        blocks: First operator of each block's forward, and the first after it.
        made: What they made, of more than 1 MiB.
        resident_bytes: What was in use before the step: parameters, optimizer's state.
        frozen_bytes: Of these, parameters that are not trained.
        out_bytes_per_ms: Rate of the link to the host.
        in_bytes_per_ms: Rate of the link to the device.
    """

    operators_ms: list[float]
    used_bytes: list[int]
    backward: int
    optimizer: int
    blocks: list[tuple[int, int]]
    made: list[Storage]
    resident_bytes: int
    frozen_bytes: int
    out_bytes_per_ms: float
    in_bytes_per_ms: float

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    def by_block(self) -> Record:
        """The same where nothing of a block is recomputed but by all of its forward.

        Each tensor within a block then takes its share of that. What later parts of
        forward use, such as the block's output, is not recomputed at all.
        """
        made = list(self.made)
        for first, end in self.blocks:
            saved = [
                i
                for i, storage in enumerate(made)
                if first <= storage.touches[0] < end
                and storage.touches[-1] >= self.backward
            ]
            own = [i for i in saved if not made[i].is_used(end, self.backward)]
            own_bytes = sum(made[i].bytes for i in own)
            block_ms = sum(self.operators_ms[first:end])
            for i in saved:
                share_ms = block_ms * made[i].bytes / own_bytes if i in own else inf
                made[i] = replace(made[i], recompute_ms=share_ms)
        return replace(self, made=made)

    @staticmethod
    def read(path: Path) -> Record:
        told = json.loads(path.read_text())
        made = [Storage(**storage) for storage in told.pop("made")]
        return Record(**told, made=made)


class Recorder(TorchDispatchMode):
    """Records the operators within it, backward's too.

    Args:
        blocks: The model's.
    """

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self._events: list[torch.cuda.Event] = []
        self._used_bytes: list[int] = []
        self._made: list[Storage] = []
        self._at: dict[int, Storage] = {}  # the newest at each address
        self._writes: list[tuple[int, list[Storage]]] = []  # by operator
        self._resident_bytes = torch.cuda.memory_allocated()
        self._blocks: list[tuple[int, int]] = []
        for block in blocks:
            self._watch(block)

    def _watch(self, block: nn.Module) -> None:
        begun: list[int] = []
        block.register_forward_pre_hook(lambda *_: begun.append(len(self._events)))
        block.register_forward_hook(
            lambda *_: self._blocks.append((begun.pop(), len(self._events)))
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        index = len(self._events)
        self._events.append(event())
        torch.cuda.reset_peak_memory_stats()
        result = func(*args, **(kwargs or {}))
        self._used_bytes.append(torch.cuda.max_memory_allocated())
        read, given = dict(_storages((args, kwargs))), dict(_storages(result))
        made = {at: Storage(size) for at, size in given.items() if at not in read}
        self._at.update(made)
        self._made += made.values()
        touched = [self._at[at] for at in {**read, **given} if at in self._at]
        for storage in touched:
            storage.touches.append(index)
        changed = given if func._schema.is_mutable else made
        self._writes.append((index, [self._at[at] for at in changed if at in self._at]))
        return result

    def record(self, marks: dict[str, torch.cuda.Event], model: Any) -> Record:
        """What was recorded, once the device has done it.

        Args:
            marks: When ``backward`` and ``optimizer`` began, and the step's ``end``.
            model: The model that was trained.
        """
        start = self._events[0]
        times = [start.elapsed_time(e) for e in [*self._events, marks["end"]]]
        operators_ms = [after - before for before, after in pairwise(times)]
        began_ms = [start.elapsed_time(marks[x]) for x in ("backward", "optimizer")]
        out_bytes_per_ms, in_bytes_per_ms = _link_rates()
        for operator, written in self._writes:
            total_bytes = sum(storage.bytes for storage in written)
            for storage in written:
                share = storage.bytes / max(total_bytes, 1)
                storage.recompute_ms += share * operators_ms[operator]
        return Record(
            operators_ms,
            self._used_bytes,
            *(sum(ms < began for ms in times) for began in began_ms),
            self._blocks,
            [storage for storage in self._made if storage.bytes > SMALL_BYTES],
            self._resident_bytes,
            sum(p.nbytes for p in model.parameters() if not p.requires_grad),
            out_bytes_per_ms,
            in_bytes_per_ms,
        )


def _storages(values: Any) -> Iterator[tuple[int, int]]:
    """Addresses and bytes of the storages of all tensors on the device."""
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor) and value.is_cuda:
            storage = value.untyped_storage()
            yield storage.data_ptr(), storage.nbytes()


def _link_rates() -> tuple[float, float]:
    """Bytes per millisecond to the host and to the device."""
    host = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    marks = [event()]
    for to, source in ((host, device), (device, host)):
        to.copy_(source, non_blocking=True)
        marks.append(event())
    torch.cuda.synchronize()
    out_ms, in_ms = (a.elapsed_time(b) for a, b in pairwise(marks))
    return COPIED_BYTES / out_ms, COPIED_BYTES / in_ms
