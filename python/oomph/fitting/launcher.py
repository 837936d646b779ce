"""Processes of scripts, which a server starts (:mod:`oomph.fitting.server`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any

from oomph import simulate


class Job:
    """A process that was asked for.

    Attributes:
        started: Set once it has, or never will.
        ended: Set once it has.
        code: Its exit code, a signal's as a negative; None: it has not ended.
    """

    def __init__(self) -> None:
        self.started, self.ended = threading.Event(), threading.Event()
        self.code: int | None = None
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
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        self.ended.wait()


class Launcher:
    """Starts processes from any thread; a context, which ends what serves it."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "oomph.fitting.server"],
            env={k: v for k, v in os.environ.items() if k != simulate.VARIABLE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for who asks
        )
        self._jobs: list[Job] = []
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.largest_bytes = 1  # of host memory that a process has taken

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stdin = self._server.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        self._server.wait()
        self._listener.join()

    def start(self, request: dict[str, Any]) -> Job:
        """Asks for a process, such as the server describes it."""
        stdin = self._server.stdin
        assert stdin is not None
        job = Job()
        with self._lock:
            self._jobs.append(job)
            try:
                stdin.write(json.dumps(request).encode() + b"\n")
                stdin.flush()
            except BrokenPipeError:
                job.end(1)  # the server says why
        return job

    def _listen(self) -> None:
        stdout = self._server.stdout
        assert stdout is not None
        for line in stdout:
            number, what, value, *more = json.loads(line)
            if what == "pid":
                self._jobs[number].begin(value)
            else:
                self.largest_bytes = max(self.largest_bytes, *more)
                self._jobs[number].end(value)
        with self._lock:
            for job in self._jobs:  # the server is gone
                if not job.ended.is_set():
                    job.end(1)
