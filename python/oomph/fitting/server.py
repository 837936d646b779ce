"""Starts scripts on simulated cards: forks of one process that has imported PyTorch.

Importing PyTorch takes two seconds of a core, and a question takes a dozen runs. Each
line of standard input asks for a fork: JSON, as :func:`oomph.fitting.measuring.measure`
makes it. Lines of standard output answer, as JSON: ``[number, "pid", pid]`` for the
first, second, … request, and ``[number, "code", code, max_rss_bytes]`` once it ended.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oomph import simulate

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_READ_BYTES = 1 << 16
Request = dict[str, Any]


def preload() -> None:
    """Imports PyTorch for the simulated GPU; nothing of it is used yet."""
    simulate.preload()
    asked = os.environ.get(_AUTOLOAD)
    os.environ[_AUTOLOAD] = "0"  # oomph is installed in each fork
    import torch._dynamo  # noqa: F401 - as whoever makes an optimizer

    del os.environ[_AUTOLOAD]
    if asked is not None:
        os.environ[_AUTOLOAD] = asked


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


def become(request: Request) -> int:
    """Runs what is asked for in this fork; gives its exit code."""
    write_to(request["output"])
    os.environ.update(request["environment"])
    simulate.load(os.environ[simulate.VARIABLE])
    from oomph.fitting import program, waiting
    from oomph.setup import environment

    environment.apply()
    watch = program.Watch(request["steps"])
    watch.place(Path(request["record"]), request["foresees"])
    if request["socket"] is not None:
        waiting.arrange(request, watch)
    return program.run(
        watch, request["module"], request["target"], request["arguments"]
    )


def leave(code: int) -> None:
    """Ends this process as Python does, but for a second of taking all apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def main() -> None:
    """Serves; in a fork, runs what was asked for."""
    preload()
    request = Server(0, 1, os.fork).serve()
    if request is not None:
        leave(become(request))


if __name__ == "__main__":
    main()
