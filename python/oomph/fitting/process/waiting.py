"""A script that waits where it first uses a GPU, for forks of it to go on from there.

What it does before that is the same on each card, and often takes longest: imports,
data, a model made on the CPU. So it does this once. The fork is a twin of the process:
no handler of forks is called, as PyTorch's would forbid CUDA, and Python's would seed
random numbers anew.

It waits only if forks can have all that it has (:mod:`oomph.fitting.process.alone`).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from oomph import settings, simulate
from oomph.base import imports, state
from oomph.fitting.process import alone, spawned
from oomph.fitting.process.extent import Extent
from oomph.fitting.process.forking import (
    OLD_PYTORCH,
    PYTORCH,
    Request,
    Server,
    write_to,
)
from oomph.fitting.process.program import Watch
from oomph.fitting.process.record import USED
from oomph.setup import installation
from oomph.simulate import users

_PR_SET_PDEATHSIG = 1
_exit = os._exit  # that writes nothing down


def arrange(request: Request, watch: Watch) -> None:
    """Has this process wait where it first uses a GPU, if forks can go on from there.

    Args:
        request: What it runs; ``socket`` is where it offers itself, under its ``name``.
        watch: Of the script.
    """
    said = _settings()
    imports.when_imported("tqdm.std", _without_monitor)

    def wait() -> None:
        try:
            _wait(request, watch, said)
        except BaseException:  # of which the library that calls this cannot tell
            traceback.print_exc()
            _exit(1)

    simulate.before_use(wait)


def _without_monitor(progress: Any) -> None:
    """Has progress bars go without the thread that looks after those that stand."""
    progress.tqdm.monitor_interval = 0


def _wait(request: Request, watch: Watch, said: list[str | None]) -> None:
    """Returns in each fork that is to go on, or here if there can be none."""
    if watch.is_child:  # of which the script may have several
        _go_on(request, watch)
        return
    changed = f"settings of PyTorch's allocator, {PYTORCH}, that it had changed"
    hindrance = changed if _settings() != said else alone.hindrance()
    folder = Path(request["record"]).parent
    if not hindrance and any(folder.glob(f"*{users.SUFFIX}")):
        hindrance = "started processes that had used a GPU"
    with socket.socket(socket.AF_UNIX) as asker:
        asker.connect(request["socket"])
        asker.sendall(json.dumps([request["name"], not hindrance]).encode() + b"\n")
        if hindrance:
            watch.hindrance = hindrance
            _go_on(request, watch)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        printed = Path(request["output"]).read_bytes()
        wanted = Server(asker.fileno(), asker.fileno(), alone.fork()).serve()
    if wanted is None:
        _exit(0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    Path(wanted["output"]).write_bytes(printed)
    write_to(wanted["output"])
    alone.part()
    place(watch, wanted)
    _go_on(wanted, watch)


def place(watch: Watch, request: Request) -> None:
    """Tells a watch what is asked for."""
    names = "extent", "forecasts", "begin_s"
    path, asked = Path(request["record"]), {name: request[name] for name in names}
    spawned.tell(path, {**asked, "writes_weights": request["writes_weights"]})
    watch.place(path, **{**asked, "extent": Extent(**asked["extent"])})


def begin_use(request: Request, watch: Watch) -> None:
    """Says, in the folder of a run, that it is about to use a GPU."""
    Path(request["record"]).with_name(USED).touch()
    watch.keep_files()


def _go_on(wanted: Request, watch: Watch) -> None:
    begin_use(wanted, watch)
    os.environ.update(wanted["environment"])
    simulate.change(os.environ[simulate.VARIABLE])
    if os.environ[settings.VARIABLE]:
        installation.change(os.environ[settings.VARIABLE])
        return
    if state.is_installed():
        installation.withdraw()
    if os.environ[PYTORCH]:
        torch._C._accelerator_setAllocatorSettings(os.environ[PYTORCH])


def _settings() -> list[str | None]:
    """What the environment says to PyTorch's allocator, which the script may change."""
    return [os.environ.get(name) for name in (PYTORCH, OLD_PYTORCH)]
