"""Looks for programs that do something else under oomph than natively.

Each program runs natively on a card with room, and under oomph on one that is too
small by a factor drawn for it. All that it shows must be the same, bit for bit; nothing
may be reported as misuse, nothing may be left, and no error is right but
OutOfMemoryError where nothing may be offloaded.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import multiprocessing
import random
import re
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import pytest
from support import Simulated

from campaign.program import Op, Program, draw

BLOCK = 25  # programs of consecutive seeds have one process, with one card and settings
SHRINKING_S = 40.0
GPUS = ("rtx4090", "t4", "h100")
CARD = "2GiB,context=0,devices=2,memory=values,host=8GiB"
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


@dataclass(frozen=True)
class Settings:
    """How oomph is set, and on which card."""

    card: str
    conf: str


def settings(seed: int) -> Settings:
    """Those of the block that a seed is in."""
    choose = random.Random(f"settings {seed // BLOCK}")
    keys = {
        "reserve": "0",
        "host_limit": "2GiB",
        "host_ahead": "0",
        "offload": choose.choice(["off", "on-oom", "always"]),
        "plan": choose.choice(["on", "on", "off"]),
        "promote": choose.choice(["on", "on", "off"]),
        "host_pages": choose.choice(["auto", "auto", "auto", "pinned", "pinned"]),
        "page": choose.choice(["auto", "auto", "4MiB"]),
    }
    if keys["host_pages"] == "pinned" and choose.random() < 0.6:
        keys["host_limit"] = "160MiB"
    conf = ",".join(f"{key}:{value}" for key, value in keys.items())
    return Settings(f"{CARD},gpu={choose.choice(GPUS)}", conf)


@dataclass(frozen=True)
class Finding:
    """A program that fails.

    Attributes:
        kind: ``native`` if it fails natively too, so that the program is wrong;
            ``values``, ``error``, ``left``, ``need`` (there was room), ``process`` (it
        ended, or the driver was misused).
        text: What was seen.
    """

    kind: str
    text: str
    program: Program
    settings: Settings

    def __str__(self) -> str:
        where = f"card {self.settings.card}\nconf {self.settings.conf}"
        return f"{self.kind}: {self.text}\n{where}\n{self.program}"

    @property
    def likeness(self) -> str:
        """What findings of one cause have in common, roughly."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        line = lines[0] if lines else ""
        for wanted in ("Error", "what()", "CUDA error", "Error: misuse"):
            line = next((x for x in lines if wanted in x), line)
        return self.kind + ": " + re.sub(r"0x[0-9a-f]+|\d+", "#", line)[:200]


class Hunter:
    """Processes: one with oomph, and one with PyTorch's allocator for each card.

    What a program needs depends on the card: cuBLAS takes 32 MiB a stream on an H100.
    """

    def __init__(self) -> None:
        self.native: dict[str, Simulated] = {}
        self.ours: Simulated | None = None
        self.now: Settings | None = None

    def _native(self, card: str) -> Simulated:
        if card not in self.native:
            self.native[card] = Simulated(card, None)
        return self.native[card]

    def _set(self, wanted: Settings) -> Simulated:
        if self.ours is None or wanted != self.now:
            self.close_ours()
            self.ours = Simulated(wanted.card, wanted.conf)
            self.now = wanted
        return self.ours

    def close_ours(self) -> None:
        if self.ours is not None:
            self.ours.stop()
        self.ours = None

    def close(self) -> None:
        self.close_ours()
        for native in self.native.values():
            native.stop()

    def check(self, program: Program, wanted: Settings) -> Finding | None:
        """Runs a program on both sides; None: it is as it should be."""
        text, native = program.to_json(), self._native(wanted.card)
        try:
            known = native.call("campaign.child", "run", text)
        except pytest.fail.Exception as error:
            return Finding("native", str(error), program, wanted)
        if known["failure"]:
            native.stop()
            return Finding("native", known["failure"], program, wanted)
        ours = self._set(wanted)
        try:
            arguments = text, known["peaks"], wanted.conf
            found = ours.call("campaign.child", "run", *arguments)
            left = ours.call("campaign.child", "left")
        except pytest.fail.Exception as error:
            return Finding("process", str(error), program, wanted)
        trouble = (
            _compare(found, known) or _left(left) or _needless(found, program, wanted)
        )
        if trouble is None:
            return None
        if trouble[0] != "values":
            ours.stop()  # who knows what it left
        return Finding(*trouble, program, wanted)


def _compare(found: Any, known: Any) -> tuple[str, str] | None:
    if found["failure"]:
        return "error", found["failure"]
    seen, wanted = found["seen"], known["seen"]
    if not found["short"] and seen.keys() != wanted.keys():
        return "error", f"other things seen: {sorted(seen.keys() ^ wanted.keys())}"
    bad = [k for k in wanted if k in seen and seen[k] != wanted[k]]
    return ("values", f"other values: {', '.join(bad)}") if bad else None


def _left(left: dict[str, list[int]]) -> tuple[str, str] | None:
    """What no program should leave, after all was freed."""
    return ("left", f"{left} is left") if any(map(any, left.values())) else None


def _needless(found: Any, program: Program, wanted: Settings) -> tuple[str, str] | None:
    """What was short although there was room; a plan may send what it likes.

    Garbage is not looked for again at once where that was in vain, but before an error;
    never while a stream captures, and then the error says so.
    """
    if not program.is_ample or "offload:always" in wanted.conf:
        return None
    rescues, short = found["rescues"], found["short"]
    if program.has("garbage"):
        rescues, short = 0, [place for place in short if not _captures(place)]
    if not short and not rescues:
        return None
    return "need", f"{rescues} rescues, short at {short}, with room"


def _captures(place: str) -> bool:
    return place.endswith("capture")


# ---- making it short


def shrink(finding: Finding, hunter: Hunter, seconds: float = SHRINKING_S) -> Finding:
    """The finding with as few operations as are found in some time."""
    deadline = time.monotonic() + seconds
    best = finding

    def fails(ops: list[Op]) -> bool:
        nonlocal best
        found = hunter.check(best.program.with_ops(ops), finding.settings)
        if found is None or found.kind != finding.kind:
            return False
        best = found
        return True

    count = 2
    while time.monotonic() < deadline and len(best.program.ops) > 1:
        ops = list(best.program.ops)
        size = -(-len(ops) // count)
        for start in range(0, len(ops), size):
            if time.monotonic() > deadline:
                break
            if fails(ops[:start] + ops[start + size :]):
                count = max(count - 1, 2)
                break
        else:
            if size == 1:
                break
            count = min(count * 2, len(ops))
    return best


# ---- hunting

_hunter: Hunter | None = None  # of this worker


def check_each(seeds: Iterable[int], deadline: float, shrinks: bool) -> Iterator[Any]:
    """Checks programs in this process, one after the other.

    Yields:
        The seed, and what was found if anything: its likeness and its text.
    """
    global _hunter
    _hunter = _hunter or Hunter()
    for seed in seeds:
        if time.time() > deadline:
            break
        finding = _hunter.check(draw(seed), settings(seed))
        if finding is not None and shrinks:
            finding = shrink(finding, _hunter)
        yield seed, finding and (finding.likeness, str(finding))


def check_block(
    seeds: range, deadline: float, shrinks: bool, until_found: bool
) -> list[Any]:
    """The same, all at once: what a worker does."""
    results = []
    for seed, found in check_each(seeds, deadline, shrinks):
        results.append((seed, found))
        if found and until_found:
            break
    return results


def _end_with_parent() -> None:
    """A worker whose parent is killed would wait for work for ever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def blocks(first: int, programs: int | None) -> Iterator[range]:
    """Seeds, as many at a time as have the same settings."""
    end = math.inf if programs is None else first + programs
    while first < end:
        after = int(min((first // BLOCK + 1) * BLOCK, end))
        yield range(first, after)
        first = after


def run(
    first: int,
    programs: int | None,
    deadline: float,
    jobs: int,
    shrinks: bool = True,
    until_found: bool = False,
) -> Iterator[Any]:
    """Has some workers check programs; gives what they find, as it comes.

    Each ends with the first that it finds, if that is enough.
    """
    todo, how = blocks(first, programs), (deadline, shrinks, until_found)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_end_with_parent) as pool:
        running = {
            pool.submit(check_block, block, *how)
            for block in itertools.islice(todo, jobs)
        }
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()
                block = next(todo, None)
                if block is not None and time.time() < deadline:
                    running.add(pool.submit(check_block, block, *how))
