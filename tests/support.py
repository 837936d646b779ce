"""Python processes on the simulated GPU, for tests that need the real PyTorch.

The process of pytest never uses CUDA. A test either runs a script in a process of its
own (:func:`run`), or its body runs in a process that is kept for the tests of one
module (:class:`Simulated`), since importing PyTorch takes two seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_SETTINGS = re.compile(  # of ours and PyTorch's; and what pytest and rich write by
    r"OOMPH_(?!TEST_)|PYTORCH_|CUDA_|CUBLAS|TORCH_|"
    r"(?:CI|BUILD_NUMBER|PYTEST_.*|.*_COLORS?|COLUMNS|LINES)$"
)
TIMEOUT_S = 120
PROCESSES_MAX = 3  # kept at a time: each takes some 500 MB


def environment(
    card: str | None = None, conf: str | None = None, **variables: str | None
) -> dict[str, str]:
    """The environment of a child: this one's, without what would change its ways."""
    found = {k: v for k, v in os.environ.items() if not _SETTINGS.match(k)}
    wanted = {"OOMPH_SIMULATE": card, "OOMPH_CONF": conf, **variables}
    found.update({k: v for k, v in wanted.items() if v is not None})
    return found


@functools.cache
def build_description() -> dict[str, Any]:
    """The names of setup.py: which sources there are, and where headers lie."""
    return runpy.run_path(str(ROOT / "setup.py"))


@dataclass(frozen=True)
class Result:
    """How a process ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """What it said, without the banner of the simulation."""
        lines = (self.out + self.err).splitlines(keepends=True)
        return "".join(line for line in lines if "the GPU is simulated" not in line)


def execute(
    *command: str | Path,
    card: str | None = None,
    conf: str | None = None,
    timeout: float = TIMEOUT_S,
    cwd: Path | None = None,
    **variables: str | None,
) -> Result:
    """Runs a command to its end, in a clean environment."""
    done = subprocess.run(
        [str(part) for part in command],
        env=environment(card, conf, **variables),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def run(code: str, *arguments: str | Path, **options: Any) -> Result:
    """Runs Python code in a process of its own; options as for :func:`execute`."""
    return execute(sys.executable, "-c", textwrap.dedent(code), *arguments, **options)


def oomph(*arguments: str | Path, **options: Any) -> Result:
    """Runs the command ``oomph``."""
    return execute(Path(sys.executable).with_name("oomph"), *arguments, **options)


def lines(text: str, containing: str) -> list[str]:
    """The lines of a text that contain another."""
    return [line for line in text.splitlines() if containing in line]


def kill_group(leader: int) -> None:
    """Kills a process that leads a session, and the processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


class Simulated:
    """A process on a simulated card; as a decorator, it runs a test's body there.

    The process starts with the first test and serves all that follow. Each body runs
    as a function of its module, imported there; arguments and results must be JSON.
    After each the process checks what :mod:`remote` lists.

    Args:
        card: The card, such as ``256MiB,context=0,memory=real``.
        conf: oomph's settings; None: PyTorch's own allocator.
    """

    _alive: ClassVar[list[Simulated]] = []  # oldest first

    def __init__(self, card: str, conf: str | None, **variables: str) -> None:
        self.environment = environment(card, conf, **variables)
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, body: Callable[..., Any]) -> Callable[..., Any]:
        if "remote" in sys.modules:  # this is the process that runs bodies
            return body

        @functools.wraps(body)
        def test(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return self.call(body.__module__, body.__name__, *args, **kwargs)

        return test

    def call(self, module: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Runs a function of a module in the process; fails as it does."""
        __tracebackhide__ = True
        if self.process is None:
            self._start()
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(json.dumps([module, name, args, kwargs], default=str))
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        reply = self._reply(time.monotonic() + TIMEOUT_S)
        said = self._said()
        if reply is None:
            code = self.process.wait(10)
            self.stop()
            pytest.fail(f"the process ended with {code}:\n{said}", pytrace=False)
        if "error" in reply:
            self.stop()  # the next test finds a new one
            pytest.fail(f"{reply['error']}\n{said}", pytrace=False)
        return reply["result"]

    def stop(self) -> None:
        """Ends the process; the next test starts another."""
        if self.process is not None:
            kill_group(self.process.pid)
            self.process.wait()
            self.process = None
            self._alive.remove(self)

    def _start(self) -> None:
        while len(self._alive) >= PROCESSES_MAX:
            self._alive[0].stop()
        self._alive.append(self)
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (of the process)
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", TESTS / "remote.py"],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
        )
        atexit.register(self.stop)

    def _said(self) -> str:
        """What the process wrote to its standard error since the last call."""
        self.errors.seek(0)
        text = self.errors.read()
        self.errors.seek(0)
        self.errors.truncate()
        return text

    def _reply(self, deadline: float) -> Any:
        assert self.process is not None and self.process.stdout is not None
        left = max(0.0, deadline - time.monotonic())
        if not select.select([self.process.stdout], [], [], left)[0]:
            self.process.send_signal(signal.SIGABRT)  # says where it hangs
        line = self.process.stdout.readline()
        return json.loads(line) if line else None


def on_each(cards: dict[str, Simulated]) -> Callable[..., Any]:
    """A decorator that runs a test's body on each of several cards, known by names."""

    def decorate(body: Callable[[], Any]) -> Callable[..., Any]:
        if "remote" in sys.modules:  # this is the process that runs bodies
            return body

        @pytest.mark.parametrize("way", cards, scope="module")  # one after the other
        def test(way: str) -> None:
            __tracebackhide__ = True
            cards[way].call(body.__module__, body.__name__)

        test.__name__ = body.__name__
        return test

    return decorate


def remedies(text: str) -> dict[str, bool]:
    """What an error names to be done, and whether it is said to be enough alone."""
    rows = re.findall(r"^ +[\d.]+ \w+  (.+?); costs: (.*)$", text, re.MULTILINE)
    return {action: "(not enough alone)" not in cost for action, cost in rows}
