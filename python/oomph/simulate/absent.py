"""Objects of ranks that do not exist: the program runs as one until it has sent.

A stage of a pipeline learns from the one before which shapes it gets, as an object.
What they are is for the code of that stage to say: so the program starts once more, as
the rank that would send, and ends when it has sent. It may need another rank in turn.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

from oomph.simulate.rank import Rank

_ORDER = "OOMPH_SIMULATE_WORLD_ORDER"
"""Of such a run: ``RECEIVER:COUNT:FILE``, whom it sends to, which message is wanted,
and the descriptor of the pipe that it goes to. Those of the runs that wait follow, with
spaces between them."""

_OWN_FILES = ("OOMPH_STATS", "OOMPH_TRACE")  # such a run writes none
_SAID_BYTES = 2000  # of what a run that failed has said

command: list[str] | None = None
"""How this program is started; None: as Python was."""

_FOLDER = os.getcwd()  # where it was started: programs may go elsewhere

_received: Counter[int] = Counter()
_sent: Counter[int] = Counter()


def send(objects: list[Any], receiver: int) -> None:
    """What the program sends to another rank; if it runs for that, it ends.

    Args:
        objects: What it sends.
        receiver: The rank.
    """
    _sent[receiver] += 1
    order = next(_orders(), None)
    if order is None or order[:2] != (receiver, _sent[receiver]):
        return
    with os.fdopen(order[2], "wb") as pipe:
        pickle.dump(objects, pipe)
    os._exit(0)


def receive(sender: int) -> list[Any]:
    """What another rank sends next to this one.

    Args:
        sender: The rank.

    Raises:
        RuntimeError: It waits for this rank in turn, or ends without sending.
    """
    own = int(os.environ["RANK"])
    _received[sender] += 1
    if sender == own or sender in (receiver for receiver, *_ in _orders()):
        raise RuntimeError(
            f"rank {own} waits for objects of rank {sender}, which waits for those of "
            "others in turn: alone, no rank can begin (oomph run --world)"
        )
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe, tempfile.TemporaryFile() as said:
        with open(writing, "wb"):
            process = _start(sender, f"{own}:{_received[sender]}:{writing}", said)
        message = pipe.read()
        code = process.wait()
        if message:
            return list(pickle.loads(message))
        said.seek(max(0, said.seek(0, os.SEEK_END) - _SAID_BYTES))
        text = said.read().decode(errors="replace").strip()
    raise RuntimeError(
        f"rank {own} waits for objects of rank {sender}: run as that rank, the "
        f"program ended with exit code {code} before it sent them. What it said at "
        f"last:\n{text}"
    )


def _orders() -> Iterator[tuple[int, int, int]]:
    """The orders of this run, and of those that wait for it, the nearest first."""
    for text in os.environ.get(_ORDER, "").split():
        receiver, count, file = map(int, text.split(":"))
        yield receiver, count, file


def _start(rank: int, order: str, said: Any) -> subprocess.Popen[bytes]:
    """Starts the program as another rank of this world."""
    orders = f"{order} {os.environ.get(_ORDER, '')}".strip()
    variables = {**os.environ, **Rank.of(os.environ).other(rank).variables()}
    return subprocess.Popen(
        command or [sys.executable, *sys.orig_argv[1:]],
        env={k: v for k, v in variables.items() if k not in _OWN_FILES}
        | {_ORDER: orders},
        cwd=_FOLDER,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        pass_fds=[int(order.rpartition(":")[2])],
    )
