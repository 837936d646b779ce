"""Starts scripts on simulated cards: forks of one process that has imported PyTorch.

Importing PyTorch takes two seconds of a core, and a question takes a dozen runs. Each
line of standard input asks for a fork: JSON, as :func:`oomph.fitting.measuring.measure`
makes it. Lines of standard output answer, as JSON: ``[number, "pid", pid]`` for the
first, second, … request, and ``[number, "code", code, max_rss_bytes]`` once it ended.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oomph import simulate

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_READ_BYTES = 1 << 16


def preload() -> None:
    """Imports PyTorch for the simulated GPU; nothing of it is used yet."""
    simulate.preload()
    asked = os.environ.get(_AUTOLOAD)
    os.environ[_AUTOLOAD] = "0"  # oomph is installed in each fork
    import torch._dynamo  # noqa: F401 - as whoever makes an optimizer

    del os.environ[_AUTOLOAD]
    if asked is not None:
        os.environ[_AUTOLOAD] = asked


def requests(running: dict[int, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """What is asked for, until nobody asks any more; says meanwhile what has ended.

    Args:
        running: The number and the process of each request, by a descriptor.
    """
    text = b""
    while True:
        readable = select.select([0, *running], [], [])[0]
        for ended in readable:
            if ended != 0:
                _reap(ended, *running.pop(ended))
        if 0 not in readable:
            continue
        more = os.read(0, _READ_BYTES)
        if not more:
            return
        *lines, text = (text + more).split(b"\n")
        yield from map(json.loads, lines)


def _reap(ended: int, number: int, pid: int) -> None:
    os.close(ended)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    _say(number, "code", code, usage.ru_maxrss << 10)


def _say(*answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def become(request: dict[str, Any]) -> int:
    """Runs what is asked for in this fork; gives its exit code."""
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, output, output)):
        os.dup2(file, number)
    os.environ.update(request["environment"])
    simulate.load(os.environ[simulate.VARIABLE])
    from oomph.fitting import program
    from oomph.setup import environment

    environment.apply()
    return program.run(
        Path(request["record"]),
        request["steps"],
        request["module"],
        request["target"],
        request["arguments"],
    )


def main() -> int:
    """Serves; in a fork, gives the exit code of what it ran."""
    preload()
    running: dict[int, tuple[int, int]] = {}
    for number, request in enumerate(requests(running)):
        pid = os.fork()
        if pid == 0:
            for ended in running:
                os.close(ended)
            return become(request)
        running[os.pidfd_open(pid)] = number, pid
        _say(number, "pid", pid)
    return 0


if __name__ == "__main__":
    sys.exit(main())
