"""Fits the virtual clock to one half of the published times; the other is not read.

    python benchmarks/published/fit.py          # five minutes of a core

Each row of the half is run once on its simulated card, whose driver traces what the
operators cost. Then these costs alone are given to the driver, again and again with
other keys of the card. Changed is one key at a time, as long as that lowers the mean
over all rows of how far a time is off: the logarithm of simulated to published, at
most 1, so that no row of another cause pulls. What is printed stands in
csrc/sim/libcuda/session: the shares of arithmetic in gpu.c, the others in config.c.
"""

from __future__ import annotations

import ctypes
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bars
import oomph
import score
from score import Row

Keys = dict[str, float]
Step = dict[str, Any]

# Where the search starts. What products of matrices reach is sought for the cards of
# which there are enough published; for the others gpu.c has a guess.
START: Keys = {
    "bandwidth-share": 0.9,
    "sm-bytes": 24.0,
    "sm-accesses": 3.4,
    "l2-share": 0.6,
    "launch": 2000.0,  # ns
    "dispatch": 10000.0,  # ns
    "a100-80gb flops-share": 0.8,
    "rtx4090 flops-share": 0.8,
}
FACTORS = (0.7, 0.85, 0.93, 0.97, 0.99, 1.01, 1.03, 1.07, 1.15, 1.4)
ROUNDS = 5
MOST = 1.0  # that a row counts
RUNS = 5  # of a call, one after the other, of which the median counts
TICK_NS = 1000
CACHE_BYTES = 2**28  # zeroed before each run, as measure.py does
LIBRARY = Path(oomph.__file__).parent / "_sim" / "libcuda.so.1"
BLOCK_BYTES = 2**35  # of memory that is worked on: more than any step moves


@dataclass(frozen=True)
class Case:
    """A row, and what its call does."""

    row: Row
    steps: Sequence[Step]


def cases() -> list[Case]:
    """Of the half that is fitted to."""
    groups: dict[str, list[Row]] = {}
    for row in score.rows():
        if row.kind == bars.TIME and score.half_of(row.name) == "first":
            groups.setdefault(row.card, []).append(row)
    return [
        Case(row, steps)
        for card, group in groups.items()
        for row, steps in zip(group, score.run("costs.py", card, group), strict=True)
    ]


# ---- The driver alone


class Launched(ctypes.Structure):
    """``oomph_sim_launched_t`` of csrc/sim/sim.h."""

    _fields_ = (
        ("kernel_count", ctypes.c_uint),
        ("threads", ctypes.c_uint64),
        ("block_threads", ctypes.c_uint),
    )


class Use(ctypes.Structure):
    """``oomph_sim_use_t``."""

    _fields_ = (
        ("addr", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("read", ctypes.c_uint64),
        ("written", ctypes.c_uint64),
        ("again", ctypes.c_uint64),
        ("reread", ctypes.c_uint64),
    )


class Cost(ctypes.Structure):
    """``oomph_sim_cost_t``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("flops", ctypes.c_double),
        ("precision", ctypes.c_int),
        ("accesses", ctypes.c_double),
        ("launched", Launched),
        ("uses", ctypes.POINTER(Use)),
        ("use_count", ctypes.c_size_t),
    )


class Driver:
    """A simulated card on which steps are run."""

    def __init__(self, card: str, keys: Keys) -> None:
        library = ctypes.CDLL(str(LIBRARY))
        library.oomph_sim_operator.argtypes = (ctypes.c_int, Launched)
        library.oomph_sim_operator.restype = Launched
        library.oomph_sim_advance.argtypes = (ctypes.c_uint64,)
        library.oomph_sim_reset()
        name, _, own = card.partition(",")
        texts = [f"{key}={value:.9g}" for key, value in keys_of(keys, name).items()]
        given = ",".join(["1024GiB", f"gpu={name}", "memory=none,tick=0", own, *texts])
        if library.oomph_sim_configure(given.replace(",,", ",").encode()) != 0:
            raise ValueError(
                f"{given}: {ctypes.string_at(library.oomph_sim_error())!r}"
            )
        self.library = library
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.blocks = [ctypes.c_uint64() for _ in range(2)]
        for block in self.blocks:
            self.call(
                "cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(BLOCK_BYTES)
            )
        self.ends = [ctypes.c_void_p() for _ in range(2 * RUNS)]
        for end in self.ends:
            self.call("cuEventCreate", ctypes.byref(end), 0)

    def call(self, name: str, *arguments: Any) -> None:
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} gave {result}")

    def ms(self, steps: Sequence[Step]) -> float:
        """How long they take, as measure.py takes times."""
        for start, end in zip(self.ends[::2], self.ends[1::2], strict=True):
            self.move({"kind": "fill", "bytes": CACHE_BYTES})
            self.call("cuEventRecord", start, None)
            self.run(steps)
            self.call("cuEventRecord", end, None)
        self.call("cuCtxSynchronize")
        return statistics.median(
            self.between(*ends)
            for ends in zip(self.ends[::2], self.ends[1::2], strict=True)
        )

    def between(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        ms = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(ms), start, end)
        return ms.value

    def run(self, steps: Iterable[Step]) -> None:
        operator, none = self.library.oomph_sim_operator, Launched()
        operator(1, none)
        for step in steps:
            kind = step["kind"]
            if kind == "dispatch":
                operator(-1, none)
                operator(1, none)
                continue
            if kind == "cost":
                self.tell(step)
                continue
            if kind == "kernel":
                self.call("oomph_sim_launch_kernel", b"", ctypes.c_uint64(1), 1, None)
            elif kind != "call":
                self.move(step)
            self.library.oomph_sim_advance(TICK_NS)
        operator(-1, none)

    def move(self, step: Step) -> None:
        to, source = self.blocks
        count = ctypes.c_size_t(step["bytes"])
        if step["kind"] == "copy":
            self.call("cuMemcpyAsync", to, source, count, None)
        else:
            self.call("cuMemsetD8Async", to, 0, count, None)

    def tell(self, step: Step) -> None:
        """Gives a cost, as if it worked on one piece of memory."""
        kept, addr = step["kept"], self.blocks[0].value
        rest = step["moved"] - kept
        uses = (Use * 2)(
            Use(addr, BLOCK_BYTES, rest, 0, 0, 0),
            Use(addr, BLOCK_BYTES, kept, 0, step["again"], step["reread"]),
        )
        launched = Launched(step["kernels"], step["threads"], step["block"])
        flops, precision = step["flops"], step["precision"]
        cost = Cost(b"", flops, precision, step["accesses"], launched, uses, 2)
        self.call("oomph_sim_cost", ctypes.byref(cost), None)


def keys_of(keys: Keys, name: str) -> Keys:
    """Of a card: those of all, and its own."""
    own = {key.removeprefix(f"{name} "): value for key, value in keys.items()}
    return {key: value for key, value in own.items() if " " not in key}


# ---- The search


def ratios(found: Sequence[Case], keys: Keys) -> list[float]:
    """Simulated to published, of each case; those of a card stand together."""
    drivers: dict[str, Driver] = {}
    result = []
    for case in found:
        card = case.row.card
        if card not in drivers:
            drivers = {card: Driver(card, keys)}
        result.append(drivers[card].ms(case.steps) / case.row.published)
    return result


def off(found: Sequence[Case], keys: Keys) -> float:
    """What is made small."""
    return statistics.mean(min(abs(math.log(r)), MOST) for r in ratios(found, keys))


def better(found: Sequence[Case], keys: Keys, best: float) -> tuple[Keys, float]:
    """Changes one key after the other."""
    for key in keys:
        for factor in FACTORS:
            tried = {**keys, key: keys[key] * factor}
            if key.endswith("-share") and tried[key] > 1:
                continue
            if (value := off(found, tried)) < best:
                keys, best = tried, value
    return keys, best


def main() -> None:
    """Prints the keys after each round, and at the end how far the rows are off."""
    found = cases()
    keys, best = START, off(found, START)
    for number in range(ROUNDS):
        before = best
        keys, best = better(found, keys, best)
        text = ", ".join(f"{key} {value:.3g}" for key, value in keys.items())
        print(f"{number + 1}: {best:.4f} off: {text}", flush=True)
        if before - best < 1e-4:
            break
    found_ratios = ratios(found, keys)
    for case, ratio in zip(found, found_ratios, strict=True):
        print(f"{ratio:.2f} {case.row.name}")
    near = statistics.mean(1 / 1.5 <= ratio <= 1.5 for ratio in found_ratios)
    median = statistics.median(abs(ratio - 1) for ratio in found_ratios)
    print(f"{len(found)} rows, median {median:.1%} off, {near:.0%} within 1.5 x")


if __name__ == "__main__":
    main()
