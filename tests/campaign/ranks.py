"""Random cases of ranks: their processes, what they say, and the command line."""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import processes
from ranks import BEGIN as GROUP
from ranks import QUICKLY

CARDS = ("1GiB,context=0,memory=values", "1GiB,context=0", "h100,context=0")
# What each rank does first. A variable that is set here, not in the environment, lets
# it be a fork.
BEGIN = f"import os, time\nos.environ |= {QUICKLY}\n{GROUP}"


class Ranks:
    """The ranks of a program, until the context ends: each that lives is killed then.

    Attributes:
        processes: Of each rank.
        said: What each has written so far.
    """

    def __init__(self, size: int, card: str, program: str) -> None:
        self.size, self.card, self.program = size, card, program
        self.processes: list[processes.Fork | subprocess.Popen[bytes]] = []
        self.said = [b""] * size
        self._open: dict[int, int] = {}  # the rank that writes to a pipe

    def __enter__(self) -> Ranks:
        self._folder = tempfile.TemporaryDirectory()
        for rank in range(self.size):
            out, theirs = os.pipe()
            told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.size}
            environment = processes.environment(
                f"{self.card},devices={self.size}",
                **{name: str(value) for name, value in told.items()},
            )
            store = f"{self._folder.name}/store"
            command = [sys.executable, "-c", self.program, store]
            files = [0, theirs, theirs]
            self.processes.append(processes.start(command, environment, files=files))
            os.close(theirs)
            self._open[out] = rank
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in self.processes:
            processes.kill_group(each.pid)
            each.wait()
        for out in self._open:
            os.close(out)
        self._folder.cleanup()

    def listen(self, seconds: float) -> Iterator[int]:
        """Gives each rank that has said something, until all have ended or it is time.

        Args:
            seconds: Of real time.
        """
        until = time.monotonic() + seconds
        while self._open and time.monotonic() < until:
            for out in select.select([*self._open], [], [], 0.1)[0]:
                got = os.read(out, 1 << 16)
                rank = self._open[out]
                self.said[rank] += got
                if not got:
                    os.close(out)
                    del self._open[out]
                yield rank

    @property
    def text(self) -> str:
        """What all have said, rank by rank."""
        return b"".join(self.said).decode(errors="replace")


def main(
    name: str,
    about: str | None,
    judge: Callable[[Iterable[int]], Iterable[tuple[int, str]]],
    more: Callable[[], dict[str, Any]],
) -> int:
    """Runs cases as the command line asks, and tells those that are not as they should.

    Args:
        name: Of the command.
        about: What it does.
        judge: Runs the cases of seeds; gives each, and what is wrong with it, or "".
        more: What else there is to tell in the end; a value that says that something
            is wrong is in ``"left"``.
    """
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, help="repeats one case")
    parser.add_argument("--first", type=int, help="the first seed")
    parser.add_argument("--out", type=Path, help="where the result goes, as JSON")
    wanted = parser.parse_args()
    first = wanted.seed if wanted.seed is not None else wanted.first
    if first is None:
        first = random.SystemRandom().randrange(10**9)
    count = 1 if wanted.seed is not None else wanted.cases
    print(f"{name}: seeds from {first} on", flush=True)
    missed = []
    for seed, fault in judge(range(first, first + count)):
        if fault:
            missed.append(seed)
            print(f"=== seed {seed}: {fault}", flush=True)
    result = {"first": first, "cases": count, "missed": missed, **more()}
    if wanted.out is not None:
        wanted.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{count - len(missed)} of {count} are as they should be: {result}")
    return 1 if missed or result.get("left") else 0
