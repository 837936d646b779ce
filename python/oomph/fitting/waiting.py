"""A script that waits where it first uses a GPU, for forks of it to go on from there.

What it does before that is the same on each card, and often takes longest: imports,
data, a model made on the CPU. So it does this once. The fork is a twin of the process:
no handler of forks is called, as PyTorch's would forbid CUDA, and Python's would seed
random numbers anew.

A fork has only the thread that forks, and shares with its twins what is open: so a
script waits only if it has no other thread and no child, and no connection to another
process. Files that are read are opened anew by each fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import stat
import sys
from pathlib import Path

import torch

from oomph import settings, simulate
from oomph.base import state
from oomph.fitting.forking import OLD_PYTORCH, PYTORCH, Request, Server, write_to
from oomph.fitting.program import Watch
from oomph.setup import installation

_PR_SET_PDEATHSIG = 1
_PAUSE_SOFT = 1  # omp_pause_soft: threads end, and come back when they are needed


def arrange(request: Request, watch: Watch) -> None:
    """Has this process wait where it first uses a GPU, if forks can go on from there.

    Args:
        request: What it runs; ``socket`` is where it offers itself, under its ``name``.
        watch: Of the script.
    """
    said = _settings()
    simulate.before_use(lambda: _wait(request, watch, said))


def _wait(request: Request, watch: Watch, said: list[str | None]) -> None:
    """Returns in each fork that is to go on, or here if there can be none."""
    is_alone = _is_alone() and _settings() == said
    with socket.socket(socket.AF_UNIX) as asker:
        asker.connect(request["socket"])
        asker.sendall(json.dumps([request["name"], is_alone]).encode() + b"\n")
        if not is_alone:
            _go_on(request)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        printed = Path(request["output"]).read_bytes()
        wanted = Server(asker.fileno(), asker.fileno(), _fork()).serve()
    if wanted is None:
        os._exit(0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    Path(wanted["output"]).write_bytes(printed)
    write_to(wanted["output"])
    _open_files_anew()
    _go_on(wanted)
    watch.place(Path(wanted["record"]), wanted["foresees"])


def _go_on(wanted: Request) -> None:
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


def _fork() -> ctypes._FuncPointer:
    """The call of the C library that forks and tells nobody."""
    return ctypes.PyDLL(None)._Fork


def _is_alone() -> bool:
    """Whether a fork of this process would have all that it has, and for itself."""
    try:
        _fork()
    except AttributeError:  # glibc before 2.34
        return False
    _end_threads()
    return (
        len(os.listdir("/proc/self/task")) == 1
        and not _has_children()
        and all(_can_be_shared(number) for number in _descriptors())
        and not re.search(r"^\S+ rw.s ", Path("/proc/self/maps").read_text(), re.M)
    )


def _end_threads() -> None:
    """Ends the threads of libraries that start them again when they need them."""
    for library in set(
        re.findall(r"\S*/libgomp\S*", Path("/proc/self/maps").read_text())
    ):
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(library).omp_pause_resource_all(_PAUSE_SOFT)
    pid = os.fork()  # OpenBLAS and others end theirs before a fork
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _has_children() -> bool:
    threads = Path("/proc/self/task").iterdir()
    return any((thread / "children").read_text() for thread in threads)


def _descriptors() -> list[int]:
    """Those that are open, but for the standard streams."""
    found = map(int, os.listdir("/proc/self/fd"))
    return [number for number in found if number > 2 and _is_open(number)]


def _is_open(number: int) -> bool:
    with contextlib.suppress(OSError):
        os.fstat(number)
        return True
    return False


def _can_be_shared(number: int) -> bool:
    mode = os.fstat(number).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISCHR(mode)


def _open_files_anew() -> None:
    """Gives this process places of its own in the files that it has open."""
    import fcntl

    for number in _descriptors():
        if not stat.S_ISREG(os.fstat(number).st_mode):
            continue
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
        place = os.lseek(number, 0, os.SEEK_CUR)
        opened = os.open(f"/proc/self/fd/{number}", flags & ~os.O_CREAT)
        os.lseek(opened, place, os.SEEK_SET)
        os.dup2(opened, number, os.get_inheritable(number))
        os.close(opened)
