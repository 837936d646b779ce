"""Objects of ranks that do not exist: the program runs as one until it has sent.

A stage of a pipeline learns from the one before which shapes it gets, as an object.
What they are is for the code of that stage to say: so the program starts once more, as
the rank that would send, and ends when it has sent. It may need another rank in turn.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from typing import Any

from oomph.simulate.rank import Rank

_ORDER = "OOMPH_SIMULATE_WORLD_ORDER"
"""Of such a run: ``SENDER:RECEIVER:COUNT``, the message that it is for; those of the
runs that wait for it follow, with spaces between them."""
_PIPE = "OOMPH_SIMULATE_WORLD_PIPE"  # the descriptor of the pipe that it goes to
_KNOWN = "OOMPH_SIMULATE_WORLD_KNOWN"  # that of a file with messages that are known

_OWN_FILES = ("OOMPH_STATS", "OOMPH_TRACE")  # such a run writes none
_SAID_BYTES = 2000  # of what a run that failed has said

Message = tuple[int, int, int]  # sender, receiver, and which of those between the two

command: list[str] | None = None
"""How this program is started; None: as Python was."""

_FOLDER: str | None = None  # where it was started: programs may go elsewhere
with contextlib.suppress(FileNotFoundError):  # it is gone
    _FOLDER = os.getcwd()

_received: Counter[int] = Counter()
_sent: Counter[int] = Counter()


def send(objects: list[Any], receiver: int) -> None:
    """What the program sends to another rank; if it runs for that, it ends.

    Args:
        objects: What it sends.
        receiver: The rank.
    """
    _sent[receiver] += 1
    message = int(os.environ["RANK"]), receiver, _sent[receiver]
    _known()[message] = pickle.dumps(objects)
    if _orders()[:1] == [message]:
        with os.fdopen(int(os.environ[_PIPE]), "wb") as pipe:
            pickle.dump(_known(), pipe)
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
    message = sender, own, _received[sender]
    if message not in _known():
        if sender == own or message in _orders():
            raise RuntimeError(
                f"rank {own} waits for objects of rank {sender}, which waits for those "
                "of others in turn: alone, no rank can begin (oomph run --world)"
            )
        _known().update(_found_out(message))
    return list(pickle.loads(_known()[message]))


def _found_out(message: Message) -> dict[Message, bytes]:
    """What is known once the program has run as the sender of a message."""
    sender, own, _ = message
    reading, writing = os.pipe()
    with (
        open(reading, "rb") as pipe,
        tempfile.TemporaryFile() as said,
        tempfile.TemporaryFile() as known,
    ):
        pickle.dump(_known(), known)
        known.flush()
        with open(writing, "wb"):
            process = _start(message, writing, known.fileno(), said)
        sent = pipe.read()
        code = process.wait()
        if sent:
            found: dict[Message, bytes] = pickle.loads(sent)
            return found
        said.seek(max(0, said.seek(0, os.SEEK_END) - _SAID_BYTES))
        text = said.read().decode(errors="replace").strip()
    raise RuntimeError(
        f"rank {own} waits for objects of rank {sender}: run as that rank, the "
        f"program ended with exit code {code} before it sent them. What it said at "
        f"last:\n{text}"
    )


def _orders() -> list[Message]:
    """What this run is for, and those that wait for it, the nearest first."""
    texts = os.environ.get(_ORDER, "").split()
    return [tuple(map(int, text.split(":"))) for text in texts]  # type: ignore[misc]


@cache
def _known() -> dict[Message, bytes]:
    """Messages that were sent, here or in the runs before, as pickle has them."""
    file = os.environ.get(_KNOWN)
    if file is None:
        return {}
    with open(int(file), "rb") as known:
        known.seek(0)  # whoever wrote it has the same place in it
        found: dict[Message, bytes] = pickle.load(known)
        return found


def _start(
    message: Message, pipe: int, known: int, said: Any
) -> subprocess.Popen[bytes]:
    """Starts the program as the sender of a message."""
    order = ":".join(map(str, message))
    orders = {
        _ORDER: f"{order} {os.environ.get(_ORDER, '')}".strip(),
        _PIPE: str(pipe),
        _KNOWN: str(known),
    }
    variables = os.environ | Rank.of(os.environ).other(message[0]).variables() | orders
    return subprocess.Popen(
        command or [sys.executable, *sys.orig_argv[1:]],
        env={k: v for k, v in variables.items() if k not in _OWN_FILES},
        cwd=_FOLDER,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        pass_fds=[pipe, known],
    )
