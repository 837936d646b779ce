"""Processes of scripts, which servers start (:mod:`oomph.fitting.process.server`)."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Hashable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from oomph import simulate
from oomph.memory import host
from oomph.setup.places import search_path, temporary_folder


class Event:
    """Something that happens once, which an interrupt lets one wait for again.

    ``threading.Event`` keeps its lock for ever if Ctrl-C comes while a thread that was
    woken takes it again.
    """

    def __init__(self) -> None:
        self._file = os.eventfd(0)

    def __del__(self) -> None:
        os.close(self._file)

    def set(self) -> None:
        """It has happened."""
        os.eventfd_write(self._file, 1)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it happens, or the time is up; gives whether it has."""
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self.wait(0)


class Job:
    """A process that was asked for.

    Attributes:
        started: Set once it has, or never will.
        ended: Set once it has.
        code: Its exit code, a signal's as a negative; None: it has not ended.
        is_fork: Whether it went on where a script had waited.
    """

    def __init__(self) -> None:
        self.started, self.ended = Event(), Event()
        self.code: int | None = None
        self.is_fork = False
        self._pid = 0

    def begin(self, pid: int) -> None:
        """It runs."""
        self._pid = pid
        self.started.set()

    def end(self, code: int) -> None:
        """It has ended."""
        self.code = code
        self.ended.set()
        self.started.set()

    def kill(self) -> None:
        """Ends it, and all that it has started in its session; waits for that."""
        self.started.wait()
        for end in (os.killpg, os.kill) if self._pid else ():  # it may have no session
            with contextlib.suppress(ProcessLookupError):
                end(self._pid, signal.SIGKILL)
        self.ended.wait()


class _Server:
    """One that forks when asked to.

    Args:
        source: What it says.
        sink: Where it is asked.
        forks_of_script: Whether its forks go on where a script waits.
    """

    def __init__(
        self, source: IO[bytes], sink: IO[bytes], forks_of_script: bool = False
    ) -> None:
        self._source, self._sink = source, sink
        self._forks_of_script = forks_of_script
        self._jobs: list[Job] = []
        self._lock = threading.Lock()
        self._is_gone = False
        self.largest_bytes = 1  # of host memory that a process has taken

    def start(self, request: dict[str, Any], job: Job) -> None:
        """Asks for a process, such as the server describes it."""
        job.is_fork = self._forks_of_script
        with self._lock:
            self._jobs.append(job)
            try:
                self._sink.write(json.dumps(request).encode() + b"\n")
                self._sink.flush()
            except OSError:
                job.end(1)  # the server says why
            if self._is_gone:
                job.end(1)

    def listen(self) -> None:
        """Hears what becomes of the processes, until the server ends."""
        for line in self._source:
            number, what, value, *more = json.loads(line)
            if what == "pid":
                self._jobs[number].begin(value)
            else:
                self.largest_bytes = max(self.largest_bytes, *more)
                self._jobs[number].end(value)
        with self._lock:
            self._is_gone = True
            for job in self._jobs:
                if not job.ended.is_set():
                    job.end(1)


class _Waiting(Job):
    """The process of a script that is to wait where it first uses a GPU.

    Args:
        first: The job that is its own until then.

    Attributes:
        decided: Set once it waits, or never will.
        server: Its forks; None: it does not wait.
    """

    def __init__(self, first: Job) -> None:
        super().__init__()
        self.first = first
        self.decided = Event()
        self.server: _Server | None = None

    def begin(self, pid: int) -> None:
        super().begin(pid)
        self.first.begin(pid)

    def end(self, code: int) -> None:
        super().end(code)
        if self.server is None:
            self.first.end(code)
        self.decided.set()


def _environment() -> dict[str, str]:
    """This process's, but for the card; PyTorch wants to know the user's name.

    Raises:
        ValueError: Processes would not find oomph.
    """
    found = {k: v for k, v in os.environ.items() if k != simulate.VARIABLE}
    found |= search_path()
    # Threads that PyArrow's allocator and tokenizers would have, and no fork.
    found.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    found.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        getpass.getuser()
    except (KeyError, OSError):  # as in a container that is run as any user
        found["LOGNAME"] = f"uid{os.getuid()}"
    return found


class Launcher:
    """Starts processes from any thread; a context, which ends what serves it.

    Attributes:
        began_s: When it was made, in seconds of ``time.time()``.
    """

    def __init__(self) -> None:
        self.began_s = time.time()
        environment = _environment()
        self._folder = temporary_folder("fit")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "oomph.fitting.process.server"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for who asks
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._root = _Server(self._process.stdout, self._process.stdin)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(Path(self._folder.name, "door")))
        self._door.listen()
        self._waiting: dict[Hashable, tuple[_Waiting, dict[str, Any]]] = {}
        self._calls: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._begin(self._root.listen)
        self._begin(self._answer_door)

    def _begin(self, function: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for waiting, _ in self._waiting.values():
            waiting.kill()
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for thread in self._threads:
            thread.join()
        for call in self._calls:
            call.close()
        self._folder.cleanup()

    @property
    def largest_bytes(self) -> int:
        """Of host memory that a process has taken."""
        servers = [w.server for w, _ in self._waiting.values() if w.server is not None]
        return max(server.largest_bytes for server in [self._root, *servers])

    def start(self, request: dict[str, Any], begin: Hashable | None = None) -> Job:
        """Asks for a process, such as the server describes it.

        Args:
            request: What is asked for.
            begin: Processes with an equal one do the same until they use a GPU, so all
                but the first go on where that one waits, if it can. None: from its
                start. Waits until that is known.
        """
        job = Job()
        if begin is None:
            self._root.start({**request, "socket": None}, job)
            return job
        with self._lock:
            is_first = begin not in self._waiting and self._has_room()
            if is_first:
                self._waiting[begin] = _Waiting(job), request
            waiting, _ = self._waiting.get(begin, (None, {}))
            name = [*self._waiting].index(begin) if waiting else 0
        if is_first and waiting is not None:
            offer = {"socket": self._door.getsockname(), "name": name}
            self._root.start({**request, **offer}, waiting)
            return job
        if waiting is not None:
            waiting.decided.wait()
        if waiting is None or waiting.server is None:
            return self.start(request)
        waiting.server.start(request, job)
        return job

    def _has_room(self) -> bool:
        """Whether host memory has room for one that waits, beside one that runs."""
        return host.available_bytes() > 2 * self.largest_bytes

    def _answer_door(self) -> None:
        """Hears of scripts that wait, or cannot."""
        with contextlib.suppress(OSError):  # the door is closed
            while True:
                call, _ = self._door.accept()
                self._calls.append(call)
                source = call.makefile("rb")
                name, waits = json.loads(source.readline())
                waiting, request = [*self._waiting.values()][name]
                if waits:
                    server = _Server(source, call.makefile("wb"), True)
                    waiting.server = server
                    self._begin(server.listen)
                    server.start(request, waiting.first)
                waiting.decided.set()
