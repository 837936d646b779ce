"""Carries out a program, in the order of streams that PyTorch's allocator asks for.

That order is what makes any list of operations right natively:

* Who reads waits for who wrote; who writes waits for all who used.
* A block belongs to the stream that allocated it. Whoever frees what others still use
  says so by ``record_stream``, waits, or owes: then the stream waits for these uses
  before it allocates again, as FSDP2 and loaders do, which record nothing.
* What backward is to use is neither written nor resized before.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from campaign.program import FIRST_OF_OTHER, STREAMS, Op

FOREIGN = "foreign"  # the pool of memory that is not PyTorch's
KIB = 1024
WITHOUT_HOST = ("capture", "fail_capture", "compiled", "pooled")  # graphs and MemPools


class Missing(Exception):
    """An operation finds something not there: it is left out."""


@dataclass
class Value:
    """A tensor in a register, and who uses it."""

    tensor: torch.Tensor
    pool: Any  # the stream that its memory belongs to, or who else reuses it
    uses: dict[int, torch.cuda.Event] = field(default_factory=dict)  # the last of each
    writer: int = 0
    frozen: int = 0  # passes of autograd that will come back to it
    is_plain: bool = True  # record_stream works on it, and resize_ of its storage
    is_dropped: bool = False
    turn: int = 0  # of the capture that made it, the first being 1


@dataclass
class Pass:
    """A forward whose backward is to come."""

    inputs: list[Value]
    loss: torch.Tensor | None = None  # until forward has ended, and where it failed
    leaves: list[torch.Tensor] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)  # backward is called on the first


@dataclass
class Captured:
    """A graph, what it reads, and what it writes at each replay."""

    graph: torch.cuda.CUDAGraph
    source: torch.Tensor  # memory of its own, which it reads
    result: Value
    pool: str
    home: int  # the stream that the source belongs to


Handler = Callable[..., None]
_handlers: dict[str, Handler] = {}


def handler(function: Handler) -> Handler:
    """Carries out the operation of its name."""
    _handlers[function.__name__] = function
    return function


class Machine:
    """Registers, streams, and what a program left in them.

    Args:
        may_fail: Whether memory may run out. Then what was to be written is lost.
    """

    def __init__(self, may_fail: bool = False, is_inner: bool = False) -> None:
        self.may_fail, self.is_inner = may_fail, is_inner
        self.streams = [_stream(s, is_inner) for s in range(len(STREAMS))]
        self.values: dict[int, Value] = {}
        self.models: dict[int, Any] = {}
        self.graphs: dict[int, Captured] = {}
        self.passes: dict[int, Pass] = {}
        self.debts: dict[Any, list[torch.cuda.Event]] = {}  # by pool
        self.captures = 0
        self.pools: dict[tuple[int, int], Any] = {}  # MemPools, by number and device
        self.shared: dict[str, Any] = {}  # pools of several graphs, by name
        self.closing: list[Callable[[], None]] = []  # when the program has ended
        self.seen: dict[str, torch.Tensor] = {}  # on the host, once all has ended
        self.shortages: list[str] = []
        self.place = ""  # of the operation, such as "3"

    # ---- running

    def run(self, ops: list[Op], where: str = "") -> None:
        for number, op in enumerate(ops):
            self.place = f"{where}{number} {op.name}"
            try:
                _handlers[op.name](self, **op.arguments)
            except Missing:
                self.lose(op)
            except torch.OutOfMemoryError:
                if not self.may_fail and op.name not in WITHOUT_HOST:
                    raise
                self.shortages.append(self.place)
                synchronize()
                self.lose(op)

    def lose(self, op: Op) -> None:
        """Forgets what an operation was to write, as it was left out.

        So what is in a register is the same wherever it is there at all.
        """
        self.drop(op.arguments.get("r", -1), "later")
        if op.name != "replay":
            self.forget_graph(op.arguments.get("g", -1))
        self.models.pop(op.arguments.get("n", -1), None)
        if op.name == "backward":
            self.forget_pass(op.arguments["p"])
        elif op.name == "forward" and op.arguments["p"] in self.passes:
            self.passes[op.arguments["p"]].loss = None

    def end(self, where: str = "") -> None:
        """Looks at all that is there, and lets go of it."""
        for r, value in sorted(self.values.items()):
            self.place = f"{where}end r{r}"
            with self.on(value.writer, reads=[value]):
                self.look("", value.tensor)
        synchronize()
        for kept in (self.passes, self.models, self.graphs, self.values):
            kept.clear()
        for close in self.closing:
            close()
        self.shared.clear()
        self.pools.clear()

    def look(self, name: str, tensor: torch.Tensor) -> None:
        """Has a tensor's contents kept, as they are for the current stream."""
        tensor = tensor.detach()
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self.seen[f"{self.place} {name}"] = copy.copy_(tensor, non_blocking=True)

    def digests(self) -> dict[str, int]:
        """What was seen, in short; after :func:`synchronize`."""
        return {k: zlib.crc32(v.numpy().tobytes()) for k, v in self.seen.items()}

    # ---- order

    def get(self, r: int) -> Value:
        found = self.values.get(r)
        if found is None:
            raise Missing
        return found

    def of_device(self, s: int, *values: Value) -> None:
        """Only tensors of the stream's device can be computed with on it."""
        if any(v.tensor.device != self.streams[s].device for v in values):
            raise Missing

    def event(self, s: int) -> torch.cuda.Event:
        return self.streams[s].record_event()

    def settle(self, s: int, pool: Any = None) -> None:
        """A stream is about to allocate, from its own pool or another: what is owed.

        Foreign memory is allocated by many streams, each of which waits.
        """
        key = s if pool is None else pool
        for event in self.debts.get(key, []):
            self.streams[s].wait_event(event)
        if key != FOREIGN:
            self.debts.pop(key, None)

    @contextlib.contextmanager
    def on(
        self,
        s: int,
        reads: Sequence[Value] = (),
        writes: Sequence[Value] = (),
    ) -> Iterator[torch.cuda.Stream]:
        """Within it, work goes to a stream, ordered after what it depends on."""
        stream = self.streams[s]
        self.settle(s)
        for value in reads:
            if value.writer != s:
                stream.wait_event(value.uses[value.writer])
        for value in writes:
            for event in value.uses.values():
                stream.wait_event(event)
        with torch.cuda.stream(stream):
            yield stream
        done = self.event(s)
        for value in (*reads, *writes):
            value.uses[s] = done
        for value in writes:
            value.writer = s

    def put(self, r: int, s: int, tensor: torch.Tensor, **more: Any) -> Value:
        """Puts what a stream has just made into a register."""
        pool = more.pop("pool", s)
        value = Value(tensor, pool, {s: self.event(s)}, s, **more)
        self.drop(r, "later")
        self.values[r] = value
        return value

    def part(self, value: Value, mode: str) -> None:
        """What is to be done before a tensor's memory is given back."""
        others = {s: e for s, e in value.uses.items() if s != value.pool}
        if mode == "host":
            for event in others.values():
                event.synchronize()
        elif mode == "record" and value.is_plain:
            for s in others:
                value.tensor.record_stream(self.streams[s])
        elif mode == "wait" and value.pool in range(len(STREAMS)):
            for event in others.values():
                self.streams[value.pool].wait_event(event)
        else:
            self.debts.setdefault(value.pool, []).extend(others.values())

    def drop(self, r: int, mode: str) -> None:
        """Frees a register, if there is anything in it."""
        value = self.values.get(r)
        if value is not None:
            self.part(value, mode)
            value.is_dropped = True
            del self.values[r], value.tensor  # though a pass or a graph has the value

    def forget_graph(self, g: int) -> None:
        """Drops a graph, while its last replay runs perhaps; not what it made."""
        found = self.graphs.pop(g, None)
        if found is not None:
            uses = found.result.uses.values()
            self.debts.setdefault(found.home, []).extend(uses)

    def forget_pass(self, p: int) -> None:
        """Lets go of a pass, whose work is queued, and of what it alone kept."""
        done = self.passes.pop(p, None)
        if done is None:
            return
        done.loss = None
        done.leaves.clear()
        after = {s: self.event(s) for s in done.streams}
        for value in done.inputs:
            value.frozen -= 1
            value.uses.update(after)
            if value.is_dropped:
                self.debts.setdefault(value.pool, []).extend(after.values())


def _stream(place: int, is_inner: bool) -> torch.cuda.Stream:
    """A stream of its own; for the main thread also the default one of a device."""
    device, *priority = STREAMS[place].split()
    if not is_inner and place in (0, FIRST_OF_OTHER):
        return torch.cuda.default_stream(int(device))
    return torch.cuda.Stream(int(device), priority=-1 if priority else 0)


def synchronize() -> None:
    """Waits for all devices."""
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)


@handler
def threads(m: Machine, lanes: list[list[Any]]) -> None:
    """Programs side by side, each with registers and streams of its own."""
    failures: list[BaseException] = []
    inner = [Machine(m.may_fail, is_inner=True) for _ in lanes]

    def run(machine: Machine, lane: list[Any], where: str) -> None:
        try:
            machine.run([Op(*op) for op in lane], where)
            machine.end(where)
        except BaseException as error:
            failures.append(error)

    started = [
        threading.Thread(target=run, args=(machine, lane, f"{m.place}[{i}] "))
        for i, (machine, lane) in enumerate(zip(inner, lanes, strict=True))
    ]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    for machine in inner:
        m.shortages += machine.shortages
        m.seen |= machine.seen
    if failures:
        raise failures[0]
