"""``python tests/campaign/mismatches.py``: ranks of which one calls something else.

Each case is a random program of collectives for 2 to 4 ranks, one of which differs in
one place. With a real NCCL it hangs, or mixes up numbers; here an error must name both
ranks with the lines where they part, within 5 seconds of real time. ``--seed N``
repeats a case. Ends with 1 if any is not named so.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent)]

from campaign import ranks  # noqa: E402

NAMED_S = 5.0
PATIENCE_S = 40.0
BEGIN = f"""{ranks.BEGIN}
def at(count, dtype):
    return torch.ones(count, dtype=dtype, device=device)
def parts(count, dtype, root):
    return [at(count, dtype) for _ in range(size)] if rank == root else None
pair = dist.new_group([0, 1])
world = dist.group.WORLD
dist.all_reduce(at(1, torch.float32))
"""
END = """
torch.cuda.synchronize()
dist.destroy_process_group()
"""
KINDS = {  # what each calls, and which of its arguments are told to the others
    "all_reduce": "dist.all_reduce(at({n}, {t}), dist.ReduceOp.{op}, {group})",
    "broadcast": "dist.broadcast(at({n}, {t}), {root})",
    "reduce": "dist.reduce(at({n}, {t}), {root}, dist.ReduceOp.{op})",
    "all_gather": (
        "dist.all_gather_into_tensor(at({n} * {members}, {t}), at({n}, {t}), {group})"
    ),
    "reduce_scatter": (
        "dist.reduce_scatter_tensor(at({n}, {t}), at({n} * size, {t}), "
        "dist.ReduceOp.{op})"
    ),
    "all_to_all": "dist.all_to_all_single(at({n} * size, {t}), at({n} * size, {t}))",
    "gather": "dist.gather(at({n}, {t}), parts({n}, {t}, {root}), {root})",
    "scatter": "dist.scatter(at({n}, {t}), parts({n}, {t}, {root}), {root})",
    "exchange": (
        "dist.batch_isend_irecv(["
        "dist.P2POp(dist.isend, at({n}, {t}), (rank + {shift}) % size), "
        "dist.P2POp(dist.irecv, at({n}, {t}), (rank - {shift}) % size)])"
    ),
    "message": (
        "dist.send(at({n}, {t}), {to}) if rank == {root} else "
        "dist.recv(at({n}, {t}), {root}) if rank == {to} else None"
    ),
    "barrier": "dist.barrier({group})",
}
TYPES = ("torch.float32", "torch.float16", "torch.int64", "torch.uint8")
OPS = ("SUM", "MAX", "MIN")


@dataclass(frozen=True)
class Call:
    """A call of all ranks, and what of it must be the same."""

    kind: str
    n: int
    t: str
    op: str
    root: int
    shift: int
    group: str
    size: int

    @property
    def text(self) -> str:
        to = (self.root + self.shift) % self.size
        members = "size" if self.group == "world" else "2"
        return KINDS[self.kind].format(to=to, members=members, **vars(self))

    def has(self, rank: int) -> bool:
        """Whether a rank takes part in it."""
        if self.kind == "message":
            return rank in (self.root, (self.root + self.shift) % self.size)
        return self.group == "world" or "{group}" not in KINDS[self.kind] or rank < 2

    @property
    def communicator(self) -> str:
        """A message by itself has one of its own."""
        if self.kind == "message":
            return str({self.root, (self.root + self.shift) % self.size})
        return self.group if "{group}" in KINDS[self.kind] else "world"

    def messages(self, rank: int) -> Iterator[tuple[str, int]]:
        """What it makes a rank send and receive: where to, or where from."""
        others = [r for r in range(self.size) if r != rank]
        if self.kind in ("gather", "scatter"):
            gives = (rank == self.root) == (self.kind == "scatter")
            for other in others if rank == self.root else [self.root]:
                yield "to" if gives else "from", other
        elif self.kind == "exchange":
            yield "to", (rank + self.shift) % self.size
            yield "from", (rank - self.shift) % self.size
        elif self.kind == "message":
            to = (self.root + self.shift) % self.size
            yield ("to", to) if rank == self.root else ("from", self.root)

    @classmethod
    def draw(cls, choose: random.Random, size: int) -> Call:
        return cls(
            choose.choice([*KINDS]),
            choose.choice([1, 7, 8, 64, 1000, 100_000]),
            choose.choice(TYPES),
            choose.choice(OPS),
            choose.randrange(size),
            choose.randrange(1, size),
            choose.choice(["world", "world", "pair"]),
            size,
        )


@dataclass(frozen=True)
class Case:
    """What all ranks call, and what the one that differs does."""

    seed: int
    size: int
    card: str
    rank: int
    change: str
    common: tuple[Call, ...]
    other: tuple[Call, ...]

    @property
    def program(self) -> str:
        def block(calls: tuple[Call, ...]) -> str:
            now = "print('calls', time.monotonic())"
            return "\n".join(f"    {now}; {call.text}" for call in calls)

        return (
            f"{BEGIN}if rank == {self.rank}:\n{block(self.other)}\nelse:\n"
            f"{block(self.common)}\n{END}"
        )

    @property
    def parting(self) -> tuple[int, int]:
        """Where the one that differs does so, and what the others call there: places.

        Calls that it takes no part in say nothing. Behind the last one: the end.
        """
        own = [(c.text, i) for i, c in enumerate(self.other) if c.has(self.rank)]
        theirs = [(c.text, i) for i, c in enumerate(self.common) if c.has(self.rank)]
        same = [a[0] == b[0] for a, b in zip(own, theirs, strict=False)]
        place = [*same, False].index(False)
        own_place = own[place][1] if place < len(own) else len(self.other)
        their_place = theirs[place][1] if place < len(theirs) else len(self.common)
        return own_place, their_place

    @property
    def differs(self) -> bool:
        """Whether NCCL can tell: messages between two ranks have no names."""
        own, common = (
            seen_by_nccl([c for c in calls if c.has(self.rank)], self.rank)
            for calls in (self.other, self.common)
        )
        return own != common

    def line_of(self, rank: int, place: int) -> int:
        """The line of a call of a rank."""
        first = BEGIN.count("\n") + 2
        return first + place + (0 if rank == self.rank else len(self.other) + 1)


def seen_by_nccl(calls: list[Call], rank: int) -> dict[str, list[Any]]:
    """The calls of a rank in each communicator, in order.

    Between two collectives, what is sent to each rank and received from it.
    """
    seen: dict[str, list[Any]] = {}
    for call in calls:
        messages = list(call.messages(rank))
        told = seen.setdefault(call.communicator, [{}])
        for channel in messages:
            told[-1].setdefault(channel, []).append((call.n, call.t))
        if not messages:
            told += [call.text, {}]
    return seen


def changed(choose: random.Random, calls: list[Call], size: int) -> str:
    """Changes the calls of a rank in one place."""
    place = choose.randrange(len(calls))
    call = calls[place]
    change = choose.choice(["kind", "argument", "argument", "order", "less", "more"])
    if change == "kind":
        kinds = [kind for kind in KINDS if kind != call.kind]
        calls[place] = replace(call, kind=choose.choice(kinds))
    elif change == "argument":
        change = choose.choice(["n", "t", "op", "root", "shift", "group"])
        drawn = Call.draw(choose, size)
        calls[place] = replace(call, **{change: getattr(drawn, change)})
    elif change == "order":
        calls[place : place + 2] = calls[place : place + 2][::-1]
    elif change == "less":
        del calls[place]
    else:
        calls.insert(place, Call.draw(choose, size))
    return change


def draw(seed: int) -> Case:
    """The case of a seed, whose ranks do differ."""
    choose = random.Random(f"mismatch {seed}")
    while True:
        size = choose.choice([2, 2, 2, 3, 3, 4])
        common = [Call.draw(choose, size) for _ in range(choose.randint(2, 6))]
        other = [*common]
        change = changed(choose, other, size)
        card = choose.choice(ranks.CARDS)
        rank = choose.randrange(size)
        case = Case(seed, size, card, rank, change, tuple(common), tuple(other))
        if case.differs:
            return case


@dataclass(frozen=True)
class Said:
    """The first error of ranks, and how long after the last call one came."""

    text: str
    seconds: float


def run(case: Case) -> Said:
    """Runs the ranks until one of them names what differs, or patience ends."""
    with ranks.Ranks(case.size, case.card, case.program) as job:
        for rank in job.listen(PATIENCE_S):
            named = re.search(rb"^oomph: (.*<string>:.*)$", job.said[rank], re.M)
            if named:
                now = time.monotonic()
                called = re.findall(r"^calls (\S+)$", job.text, re.M)
                return Said(named[1].decode(), now - max(map(float, called)))
        return Said(f"nothing\n{job.text[-1500:]}", PATIENCE_S)


def judge(case: Case, said: Said) -> str:
    """What is wrong with what was said of a case; nothing if it is as it should be.

    The rank that differs is named, and another, each at the call where they part, or at
    the first behind it that could not go on.
    """
    named = re.findall(r"rank (\d+)\b(?! of|,| has| waits).*?<string>:(\d+)", said.text)
    lines = {int(rank): int(line) for rank, line in named}
    if len(lines) < 2 or case.rank not in lines:
        return f"not rank {case.rank} and another: {said.text}"
    own_place, their_place = case.parting
    for rank, line in lines.items():
        is_own = rank == case.rank
        place = own_place if is_own else their_place
        calls = case.other if is_own else case.common
        # Who makes no more calls of the communicator is named by its last.
        has_more = any(call.has(rank) for call in calls[place:])
        has_more &= not re.search("has left|never received", said.text)
        if has_more and line < case.line_of(rank, place):
            return f"rank {rank} not at {case.line_of(rank, place)}: {said.text}"
    return ""


def main() -> int:
    seconds = []

    def check(seeds: Iterable[int]) -> Iterator[tuple[int, str]]:
        for seed in seeds:
            case = draw(seed)
            said = run(case)
            seconds.append(said.seconds)
            fault = judge(case, said)
            if said.seconds > NAMED_S:
                fault = f"after {said.seconds:.1f} s: {said.text}"
            yield seed, fault and f"{case.change}, {fault}\n{case.program}"

    return ranks.main(
        "mismatches", __doc__, check, lambda: {"slowest_s": round(max(seconds), 2)}
    )


if __name__ == "__main__":
    sys.exit(main())
