"""Runs a function in a forked child that can change nothing outside of itself.

The child has a copy of all that the program has: it may run the program's own
statements, whatever these change. It cannot write to files, sockets or pipes that were
open, opens none for writing, starts nothing and signals nobody. CUDA does not work in
it. It is gone when its time is over, or when its parent is.

Its time is that of the CPU, so that what it finds does not depend on who else uses the
machine. What waits uses none: it is gone once it was seen waiting too often.
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
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomph.base.log import logger

AT_A_TIME_MAX = 4  # questions: each child may copy what Python holds
LOOK_S = 0.25  # between two looks at whether a child waits
LOOKS_MAX = 120  # that find it waiting: for a lock, or for what never comes
_BUSY = frozenset("RD")  # runs or is ready to, or waits for a disk: others delay it
_ENDED_EARLY = (signal.SIGPROF, signal.SIGKILL)  # by its timer; by us, or for memory
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


@dataclass
class TimeLimit:
    """The time of the CPU that children may take together.

    Attributes:
        seconds: For all of them.
        used_s: What they have taken.
        was_short: Whether a child was ended since its time was over, or it waited.
    """

    seconds: float
    used_s: float = 0.0
    was_short: bool = False

    @property
    def left_s(self) -> float:
        """What is left."""
        return self.seconds - self.used_s


@dataclass
class _Child:
    """A forked child.

    Attributes:
        pid: Its number.
        answers: Where it writes.
        time_limit: Whose time it takes.
        reported_s: What it has reported that it took.
    """

    pid: int
    answers: int
    time_limit: TimeLimit
    reported_s: float = 0.0

    def read(self, may_wait: bool = False) -> Any | None:
        """Its next answer; None if it failed, or was ended.

        Args:
            may_wait: For children of its own, which are watched by itself.
        """
        text = self._line(may_wait)
        if not text:
            self.time_limit.was_short |= self.end() in _ENDED_EARLY
            return None
        answer = json.loads(text)
        self._take(answer["used_s"])
        if "failure" in answer:
            logger.debug("a forked child failed: %s", answer["failure"])
            return None
        return answer["result"]

    def end(self) -> int:
        """Ends it, if it still is there.

        Returns:
            The signal that ended it; 0: it ended by itself.
        """
        global _may
        if not self.pid:
            return 0
        pid, self.pid = self.pid, 0
        _may = True  # this one may otherwise signal nobody
        os.kill(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
        _may = False
        os.close(self.answers)
        self._take(used.ru_utime + used.ru_stime)
        return os.WTERMSIG(status)

    def _take(self, used_s: float) -> None:
        self.time_limit.used_s += used_s - self.reported_s
        self.reported_s = used_s

    def _line(self, may_wait: bool) -> bytes:
        """What it writes; b"" if it ends first, or waits too often."""
        parts: list[bytes] = []
        waits = 0
        while waits < LOOKS_MAX:
            if not select.select([self.answers], [], [], LOOK_S)[0]:
                waits += not may_wait and self._waits()
                continue
            part = os.read(self.answers, 1 << 16)
            if not part:
                return b""
            parts.append(part)
            if part.endswith(b"\n"):
                return b"".join(parts)
        logger.debug("a forked child waited too long")
        return b""

    def _waits(self) -> bool:
        """Whether it neither runs nor would, if others let it."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] not in _BUSY


class Session:
    """A forked child that answers questions, each in a forked child of its own.

    Args:
        begin: Is called in the child. It gives the first answer, and a function that
            answers questions; questions and answers must be what JSON has.
        time_limit: The time that all of it may take.
        first_s: What of it the first answer may take; None: all.

    Attributes:
        first: The first answer; None if the child failed, or took too long.

    Example:
        >>> with Session(lambda: ("ready", lambda n: n + 1), TimeLimit(5)) as session:
        ...     session.first, session.ask([1, 2])
        ('ready', [2, 3])
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Any, Callable[[Any], Any]]],
        time_limit: TimeLimit,
        first_s: float | None = None,
    ) -> None:
        self._time_limit = time_limit
        reader, self._questions = os.pipe()
        seconds = time_limit.left_s if first_s is None else first_s
        work = functools.partial(_serve, begin, reader)
        self._child = _start(work, time_limit, seconds)
        os.close(reader)
        self.first = None if self._child is None else self._child.read()

    def ask(self, questions: list[Any]) -> list[Any | None]:
        """Asks several; None for what failed, or took too long."""
        nothing = [None] * len(questions)
        if self._child is None or not self._child.pid:
            return nothing
        asked = json.dumps([questions, self._time_limit.left_s]).encode()
        try:
            os.write(self._questions, asked + b"\n")
        except BrokenPipeError:  # it had failed
            return nothing
        found, was_short = self._child.read(may_wait=True) or (nothing, False)
        self._time_limit.was_short |= was_short
        return found

    def close(self) -> None:
        """Ends the child, and those that it has."""
        if self._child is not None:
            self._child.end()
        if self._questions >= 0:
            os.close(self._questions)
            self._questions = -1

    def __enter__(self) -> Session:
        """Gives itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()


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
    signal.setitimer(signal.ITIMER_PROF, 0)  # those that answer have their own
    with os.fdopen(reader) as questions:
        for line in questions:
            wanted, seconds = json.loads(line)
            time_limit = TimeLimit(seconds)
            found = _each(answer, wanted, time_limit)
            _write(answers, {"result": [found, time_limit.was_short]})


def _each(
    answer: Callable[[Any], Any], questions: list[Any], time_limit: TimeLimit
) -> list[Any | None]:
    """Answers in children of their own, some at a time."""
    count = at_a_time()
    found: list[Any | None] = []
    for i in range(0, len(questions), count):
        children = [
            _start(functools.partial(_answer, answer, q), time_limit, time_limit.left_s)
            for q in questions[i : i + count]
        ]
        for child in children:
            found.append(None if child is None else child.read())
            if child is not None:
                child.end()
    return found


def at_a_time() -> int:
    """How many questions are answered at a time."""
    return min(AT_A_TIME_MAX, len(os.sched_getaffinity(0)))


def _answer(answer: Callable[[Any], Any], question: Any, answers: int) -> None:
    try:
        _write(answers, {"result": answer(question)})
    except BaseException:
        _write(answers, {"failure": traceback.format_exc(chain=False)})


def _start(
    work: Callable[[int], None], time_limit: TimeLimit, seconds: float
) -> _Child | None:
    """Forks; None if there can be no child.

    Args:
        work: What it does; it is given where to write.
        time_limit: Whose time it takes.
        seconds: What it may take of it.
    """
    global _may
    if seconds <= 0:
        time_limit.was_short = True
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
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            work(writer)
        finally:
            os._exit(0)
    os.close(writer)
    return _Child(pid, reader, time_limit)


def used_s() -> float:
    """The time of the CPU that this process took, with its children that ended."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    found = map(resource.getrusage, whose)
    return sum(used.ru_utime + used.ru_stime for used in found)


def _write(fd: int, answer: dict[str, Any]) -> None:
    sent = json.dumps({**answer, "used_s": used_s()}).encode() + b"\n"
    while sent:
        sent = sent[os.write(fd, sent) :]


def _shut_in(kept: set[int]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.dont_write_bytecode = True
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (nothing, *kept):
            _take_off(int(name), nothing)
    # PyTorch makes this folder when it imports what compiles: give it one that exists.
    if not os.path.isdir(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.sep
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
        is_own = path == os.devnull or isinstance(path, int)  # what is open is shut in
        if (is_write or set(mode or "") & set("wax+")) and not is_own:
            raise Forbidden(f"open {path}")
