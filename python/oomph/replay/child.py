"""Runs a function in a forked child that can change nothing outside of itself.

The child has a copy of all that the program has: it may run the program's own
statements, whatever these change. It cannot write to files, sockets or pipes that were
open, opens none for writing, starts nothing and signals nobody. CUDA does not work in
it. It is gone when its time is over, or when its parent is.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import resource
import select
import signal
import stat
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from oomph.base.log import logger

AT_A_TIME_MAX = 4  # questions: each child may copy what Python holds
_PR_SET_PDEATHSIG = 1
_FORBIDDEN = frozenset(
    [
        *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink"),
        *("os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr"),
        *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn"),
        *("os.kill", "os.killpg", "signal.pthread_kill", "subprocess.Popen"),
        *("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"),
        *("shutil.rmtree", "shutil.move", "shutil.copyfile", "sqlite3.connect"),
        *("_thread.start_new_thread", "_thread.start_joinable_thread"),
    ]
)
_may = False  # fork and kill: this module itself does
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Forbidden(PermissionError):
    """The child wanted to do something that others would see."""


class Session:
    """A forked child that answers questions, each in a forked child of its own.

    Args:
        begin: Is called in the child. It gives the first answer, and a function that
            answers questions; questions and answers must be what JSON has.
        seconds: How long all of it may take.
        first_seconds: How long the first answer may take; None: as long.

    Attributes:
        first: The first answer; None if the child failed, or took too long.

    Example:
        >>> with Session(lambda: ("ready", lambda n: n + 1), 5) as session:
        ...     session.first, session.ask([1, 2])
        ('ready', [2, 3])
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Any, Callable[[Any], Any]]],
        seconds: float,
        first_seconds: float | None = None,
    ) -> None:
        self._end = time.monotonic() + seconds
        reader, self._questions = os.pipe()
        self._child = _start(lambda answers: _serve(begin, reader, answers), seconds)
        os.close(reader)
        within = seconds if first_seconds is None else first_seconds
        self.first = self._answer(time.monotonic() + within)

    def ask(self, questions: list[Any]) -> list[Any | None]:
        """Asks several; None for what failed, or took too long."""
        if self._child is None:
            return [None] * len(questions)
        left = self._end - time.monotonic()
        try:
            os.write(self._questions, json.dumps([questions, left]).encode() + b"\n")
        except BrokenPipeError:  # its time was over
            self.close()
            return [None] * len(questions)
        return self._answer(self._end) or [None] * len(questions)

    def close(self) -> None:
        """Ends the child, and those that it has."""
        if self._child is not None:
            pid, answers = self._child
            self._child = None
            os.close(answers)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if self._questions >= 0:
            os.close(self._questions)
            self._questions = -1

    def __enter__(self) -> Session:
        """Gives itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def _answer(self, end: float) -> Any | None:
        if self._child is None:
            return None
        result = _result(_read(self._child[1], min(end, self._end)))
        if result is None:
            self.close()
        return result


def _serve(
    begin: Callable[[], tuple[Any, Callable[[Any], Any]]], reader: int, answers: int
) -> None:
    """The child: answers until nobody asks any more."""
    try:
        _shut_in({reader, answers})
        first, answer = begin()
        _write(answers, {"result": first})
    except BaseException:
        _write(answers, {"failure": traceback.format_exc(chain=False)})
        return
    with os.fdopen(reader) as questions:
        for line in questions:
            wanted, seconds = json.loads(line)
            _write(answers, {"result": _each(answer, wanted, seconds)})


def _each(
    answer: Callable[[Any], Any], questions: list[Any], seconds: float
) -> list[Any | None]:
    """Answers in children of their own, some at a time."""
    end = time.monotonic() + seconds
    count = at_a_time()
    found: list[Any | None] = []
    for i in range(0, len(questions), count):
        children = [
            _start(functools.partial(_tell, answer, q), end - time.monotonic())
            for q in questions[i : i + count]
        ]
        for child in children:
            result = _result(_read(child[1], end)) if child is not None else None
            if child is not None:
                os.close(child[1])
                _kill(child[0])
            found.append(result)
    return found


def at_a_time() -> int:
    """How many questions are answered at a time."""
    return min(AT_A_TIME_MAX, len(os.sched_getaffinity(0)))


def _tell(answer: Callable[[Any], Any], question: Any, answers: int) -> None:
    try:
        _write(answers, {"result": answer(question)})
    except BaseException:
        _write(answers, {"failure": traceback.format_exc(chain=False)})


def _kill(pid: int) -> None:
    """Ends a child of this one, which may otherwise signal nobody."""
    global _may
    _may = True
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    _may = False


def _start(work: Callable[[int], None], seconds: float) -> tuple[int, int] | None:
    """Forks; gives the process, and where it writes. None if there can be no child."""
    global _may
    if seconds <= 0:
        return None
    reader, writer = os.pipe()
    try:
        _may = True
        with warnings.catch_warnings():  # of threads, which the child does not have
            warnings.simplefilter("ignore")
            pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        return None
    finally:
        _may = False
    if pid == 0:
        try:
            os.close(reader)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            work(writer)
        finally:
            os._exit(0)
    os.close(writer)
    return pid, reader


def _write(fd: int, answer: dict[str, Any]) -> None:
    sent = json.dumps(answer).encode() + b"\n"
    while sent:
        sent = sent[os.write(fd, sent) :]


def _result(text: bytes) -> Any | None:
    answer = json.loads(text) if text else {"failure": "it ended, or took too long"}
    if "failure" in answer:
        logger.debug("a forked child failed: %s", answer["failure"])
        return None
    return answer["result"]


def _read(fd: int, end: float) -> bytes:
    """A line; b"" if none comes in time."""
    parts: list[bytes] = []
    while (left := end - time.monotonic()) > 0:
        if not select.select([fd], [], [], left)[0]:
            break
        part = os.read(fd, 1 << 16)
        if not part:
            break
        parts.append(part)
        if part.endswith(b"\n"):
            return b"".join(parts)
    return b""


def _shut_in(kept: set[int]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.dont_write_bytecode = True
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (nothing, *kept):
            _take_off(int(name), nothing)
    sys.addaudithook(_refuse)


def _take_off(fd: int, nothing: int) -> None:
    """Gives a file that was open for reading an offset of its own; ends all others."""
    try:
        how = os.fstat(fd)
        flags = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY) if _is_read(fd, how) else -1
    except OSError:
        flags = -1
    if flags < 0:
        os.dup2(nothing, fd, inheritable=False)
        return
    os.lseek(flags, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(flags, fd, inheritable=False)
    os.close(flags)


def _is_read(fd: int, how: os.stat_result) -> bool:
    import fcntl

    mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    return stat.S_ISREG(how.st_mode) and mode == os.O_RDONLY


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _FORBIDDEN and not _may:
        raise Forbidden(event)
    if event == "open":
        path, mode, flags = arguments
        is_write = isinstance(flags, int) and flags & _WRITES
        if (is_write or set(mode or "") & set("wax+")) and path != os.devnull:
            raise Forbidden(f"open {path}")
