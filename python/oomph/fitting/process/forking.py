"""Serving forks: what is asked for and answered, and what each fork does first."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable, Iterator
from typing import Any

# Settings of PyTorch's own allocator, by the name of today and the one before it.
PYTORCH, OLD_PYTORCH = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
_READ_BYTES = 1 << 16
Request = dict[str, Any]


class Server:
    """Forks for whoever asks through two descriptors.

    Args:
        source: Where requests are read.
        sink: Where answers are written.
        fork: What forks.
    """

    def __init__(self, source: int, sink: int, fork: Callable[[], int]) -> None:
        self._source, self._sink, self._fork = source, sink, fork
        # The number and the process of each request, by a descriptor.
        self._running: dict[int, tuple[int, int]] = {}

    def serve(self) -> Request | None:
        """Forks until nobody asks any more: None. In a fork, gives what was asked."""
        for number, request in enumerate(self._requests()):
            pid = self._fork()
            if pid == 0:
                for ended in self._running:
                    os.close(ended)
                return request
            self._running[os.pidfd_open(pid)] = number, pid
            self._say(number, "pid", pid)
        return None

    def _requests(self) -> Iterator[Request]:
        """What is asked for; says meanwhile what has ended."""
        text = b""
        while True:
            readable = select.select([self._source, *self._running], [], [])[0]
            for ended in readable:
                if ended != self._source:
                    self._reap(ended, *self._running.pop(ended))
            if self._source not in readable:
                continue
            more = os.read(self._source, _READ_BYTES)
            if not more:
                return
            *lines, text = (text + more).split(b"\n")
            yield from map(json.loads, lines)

    def _reap(self, ended: int, number: int, pid: int) -> None:
        os.close(ended)
        _, status, usage = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._say(number, "code", code, usage.ru_maxrss << 10)

    def _say(self, *answer: Any) -> None:
        os.write(self._sink, json.dumps(answer).encode() + b"\n")


def write_to(output: str) -> None:
    """Begins a session of its own, whose output goes to a file."""
    os.setsid()
    opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, opened, opened)):
        os.dup2(file, number)
