"""Starts Python processes on the simulated GPU, as forks where nothing forbids it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

TESTS = Path(__file__).parent

# Of ours and PyTorch's; what pytest and rich write by; and what has each Python compile
# its modules anew, and pytest the plugins that it rewrites: a second of a core.
_SETTINGS = re.compile(
    r"OOMPH_(?!TEST_)|PYTORCH_|CUDA_|CUBLAS|TORCH_|PYTHONDONTWRITEBYTECODE$|"
    r"(?:CI|BUILD_NUMBER|PYTEST_.*|.*_COLORS?|COLUMNS|LINES)$"
)
# A program's frame has Python's own above it and no other, and nothing else holds it.
_SERVER = """
import forkserver
start = forkserver.serve
while True:
    try:
        exec(*start())
        break
    except forkserver.Replaced as replaced:
        start = replaced.start
"""
FITS = {"fit", "replay"}  # commands that start scripts on cards
FITTING = "oomph.fitting.process.server"  # the process that forks them
# What nothing reads before a fork has become what was asked for.
_READ_LATE = re.compile(
    r"OOMPH_(?!TEST_)|TORCHINDUCTOR_|TRITON_CACHE_DIR$|TORCH_DEVICE_BACKEND_AUTOLOAD$|"
    r"(?:PYTHONPATH|CUDA_VISIBLE_DEVICES|HF_HUB_OFFLINE|COLUMNS|PET_STANDALONE)$|"
    r"(?:(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(?:ADDR|PORT))$|"
    r"TORCHELASTIC_|TORCH_NCCL_|"  # as torchrun tells its ranks, and a group is made
    r"(?:BATCH|GROWTH|LOSS)$"  # by programs of tests
)


def environment(
    card: str | None = None, conf: str | None = None, **variables: str | None
) -> dict[str, str]:
    """The environment of a child: this one's, without what would change its ways.

    Its operators use one thread: tests run side by side.
    """
    found = {k: v for k, v in os.environ.items() if not _SETTINGS.match(k)}
    found["OMP_NUM_THREADS"] = "1"
    wanted = {"OOMPH_SIMULATE": card, "OOMPH_CONF": conf, **variables}
    found.update({k: v for k, v in wanted.items() if v is not None})
    return found


def kill_group(leader: int) -> None:
    """Kills a process that leads a session, and the processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


class Fork:
    """A process that the fork server started, used as a :class:`subprocess.Popen`."""

    _server: socket.socket | None = None  # a fork has that which it comes from
    _starting = threading.Lock()

    def __init__(self, request: dict[str, Any], files: list[int]) -> None:
        self._replies, theirs = socket.socketpair()
        with theirs:
            message = json.dumps(request).encode()
            with self._starting:
                server = self._connect()
            socket.send_fds(server, [message], [*files, theirs.fileno()])
        self._lines = self._replies.makefile("r")
        self.pid = self._answer()
        self.returncode: int | None = None

    @classmethod
    def use(cls, server: socket.socket) -> None:
        """Has a server start the forks that this process asks for."""
        cls._server = server

    @classmethod
    def forget(cls) -> None:
        """Closes the connection to the server: the process is to have none."""
        if cls._server is not None:
            cls._server.close()
            cls._server = None

    @classmethod
    def _connect(cls) -> socket.socket:
        """The server of this process, started on first use; it ends with it."""
        if cls._server is None:
            folders = [str(TESTS), os.environ.get("PYTHONPATH", "")]
            cls._server, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with theirs:
                subprocess.Popen(
                    [sys.executable, "-c", _SERVER],
                    env=environment(PYTHONPATH=os.pathsep.join(filter(None, folders))),
                    stdin=theirs,
                    start_new_session=True,
                )
            atexit.register(cls._server.close)
        return cls._server

    def _answer(self) -> int:
        """The next number that the server says."""
        line = self._lines.readline()
        if not line:
            raise RuntimeError("the fork server has ended: its error stands above")
        return int(line)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; gives its exit code, or the signal's as a negative."""
        if self.returncode is None:
            if not select.select([self._replies], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a fork", timeout or 0)
            self.returncode = self._answer()
            self._lines.close()
            self._replies.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code if it has ended, as that of wait."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends it a signal, if it is still there."""
        if self.returncode is None:
            os.kill(self.pid, number)


def start(
    command: list[str],
    variables: dict[str, str],
    *,
    cwd: Path | None = None,
    files: list[int | IO[Any]],
    anew: bool = False,
) -> Fork | subprocess.Popen[bytes]:
    """Starts a program in a session of its own.

    Args:
        command: The program, and its arguments.
        variables: The whole environment.
        cwd: The working directory; None: this one.
        files: What its three standard files are.
        anew: Whether it may be no fork, even if it is this Python.
    """
    python = _arguments_of_python(command)
    if python and not anew and _can_fork(python, variables):
        request = {
            "command": python,
            "environment": variables,
            "cwd": str(cwd or Path.cwd()),
        }
        numbers = [f if isinstance(f, int) else f.fileno() for f in files]
        return Fork(request, numbers)
    return subprocess.Popen(
        command,
        env=variables,
        cwd=cwd,
        stdin=files[0],
        stdout=files[1],
        stderr=files[2],
        start_new_session=True,
    )


def run_captured(
    command: list[str], *, env: dict[str, str], cwd: Path, timeout: float, **_: Any
) -> subprocess.CompletedProcess[str]:
    """Takes the place of subprocess.run where that captures text."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(command, env, cwd=cwd, files=[0, out, err])
        try:
            code = process.wait(timeout)
        finally:
            kill_group(process.pid)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def _arguments_of_python(command: list[str]) -> list[str]:
    """What a command has this Python do; nothing if it is another or has options."""
    program = Path(command[0])
    if command[0] == sys.executable:
        rest = command[1:]
        first = rest[1] if rest[0] == "-u" else rest[0]
        return [] if first.startswith("-") and first not in ("-c", "-m") else rest
    ours = program.parent == Path(sys.executable).parent
    if ours and program.name in ("oomph", "torchrun"):
        return command
    return []


def _can_fork(arguments: list[str], variables: dict[str, str]) -> bool:
    """Whether the GPU is simulated, and PyTorch's import does not depend on the rest.

    That is: no variable differs that is read before or while PyTorch is imported.
    """
    early, ours = (
        {k: v for k, v in found.items() if not _READ_LATE.match(k)}
        for found in (variables, environment())
    )
    simulated = any(a.startswith("--simulate") or a == FITTING for a in arguments)
    simulated |= bool(FITS & {*arguments[1:3]}) or "OOMPH_SIMULATE" in variables
    return simulated and early == ours
