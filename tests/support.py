"""Python processes on the simulated GPU, for tests that need the real PyTorch.

The process of pytest never uses CUDA. A test either runs a script in a process of its
own (:func:`run`), or its body runs in a process that is kept for the tests of one
module (:class:`Simulated`), since importing PyTorch takes two seconds.
"""

from __future__ import annotations

import atexit
import ctypes
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
from processes import TESTS, Fork, environment, kill_group, start

ROOT = TESTS.parent
APART = Path(sys.prefix) / "apart"  # tools/install_tools.py
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

TIMEOUT_S = 300  # of a machine that others use, too
PROCESSES_MAX = 3  # kept at a time: each takes some 500 MB


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
    anew: bool = False,
    **variables: str | None,
) -> Result:
    """Runs a command to its end, in a clean environment.

    This Python is a fork where nothing forbids it, unless it is to start anew.
    """
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        process = start(
            [str(part) for part in command],
            environment(card, conf, **variables),
            cwd=cwd,
            files=[nothing, out, err],
            anew=anew,
        )
        try:
            process.wait(timeout)
        finally:
            kill_group(process.pid)
        out.seek(0)
        err.seek(0)
        return Result(process.wait(), out.read(), err.read())


def run(code: str, *arguments: str | Path, **options: Any) -> Result:
    """Runs Python code in a process of its own; options as for :func:`execute`."""
    return execute(sys.executable, "-c", textwrap.dedent(code), *arguments, **options)


def oomph(*arguments: str | Path, **options: Any) -> Result:
    """Runs the command ``oomph``; options as for :func:`execute`."""
    return execute(Path(sys.executable).with_name("oomph"), *arguments, **options)


def lines(text: str, containing: str) -> list[str]:
    """The lines of a text that contain another."""
    return [line for line in text.splitlines() if containing in line]


def cuda_runtime() -> ctypes.CDLL:
    """The CUDA runtime that PyTorch has loaded."""
    import torch

    return ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")


class Simulated:
    """A process on a simulated card; as a decorator, it runs a test's body there.

    The process starts with the first test and serves all that follow. Each body runs
    as a function of its module, imported there; arguments and results must be JSON.
    After each the process checks what :mod:`remote` lists.

    Args:
        card: The card, such as ``256MiB,context=0,memory=real``.
        conf: oomph's settings; None: PyTorch's own allocator.
        anew: Whether the process may be no fork of one that has imported PyTorch.
    """

    _alive: ClassVar[list[Simulated]] = []  # oldest first

    def __init__(
        self, card: str, conf: str | None, *, anew: bool = False, **variables: str
    ) -> None:
        self.environment = environment(card, conf, **variables)
        self.anew = anew
        self.process: Fork | subprocess.Popen[bytes] | None = None

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
        assert self.process is not None
        self.requests.write(json.dumps([module, name, args, kwargs], default=str))
        self.requests.write("\n")
        self.requests.flush()
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
            self.requests.close()
            self.replies.close()
            self.errors.close()
            self._alive.remove(self)

    def _start(self) -> None:
        while len(self._alive) >= PROCESSES_MAX:
            self._alive[0].stop()
        self._alive.append(self)
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (of the process)
        its_input, requests = os.pipe()
        replies, its_output = os.pipe()
        folders = [path for path in sys.path if Path(path).is_relative_to(TESTS)]
        self.process = start(
            [sys.executable, str(TESTS / "remote.py"), *folders],  # of pytest's tests
            self.environment,
            files=[its_input, its_output, self.errors],
            anew=self.anew,
        )
        os.close(its_input)
        os.close(its_output)
        self.requests, self.replies = os.fdopen(requests, "w"), os.fdopen(replies)
        atexit.register(self.stop)

    def _said(self) -> str:
        """What the process wrote to its standard error since the last call."""
        self.errors.seek(0)
        text = self.errors.read()
        self.errors.seek(0)
        self.errors.truncate()
        return text

    def _reply(self, deadline: float) -> Any:
        assert self.process is not None
        left = max(0.0, deadline - time.monotonic())
        if not select.select([self.replies], [], [], left)[0]:
            self.process.send_signal(signal.SIGABRT)  # says where it hangs
        line = self.replies.readline()
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
    rows = re.findall(r"^ +[\d.]+ \w+  (.+?); cost: (.*)$", text, re.MULTILINE)
    return {action: "(not enough alone)" not in cost for action, cost in rows}
