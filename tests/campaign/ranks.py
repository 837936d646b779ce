"""Processes that are the ranks of a program, and what they say."""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
from collections.abc import Iterator
from types import TracebackType

import processes

# What each rank does first: `rank`, `size` and `device` are its own.
BEGIN = """
import os, sys, time, torch
import torch.distributed as dist
# PyTorch waits a minute before it ends a process whose group has failed.
os.environ |= {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
               "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500",
               "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "5"}
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
dist.init_process_group("nccl", init_method="file://" + sys.argv[1], rank=rank,
                        world_size=size)
"""


class Ranks:
    """The ranks of a program, until the context ends: each that lives is killed then.

    Attributes:
        processes: Of each rank.
        said: What each has written so far.
    """

    def __init__(self, size: int, card: str, program: str) -> None:
        self.size, self.card, self.program = size, card, program
        self.processes: list[processes.Process] = []
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
