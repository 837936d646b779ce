"""Environments that have a PyTorch and the wheel, made and used as a stranger's."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

IMPORTS = 15  # are timed
# Of the processor, as machines are shared. What a collection of PyTorch's own objects
# takes, which any import may set off, is not oomph's.
IMPORT = """
import os, gc
from time import process_time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
gc.freeze()
began = process_time()
import oomph_autoload
oomph_autoload.main()
import oomph
imported = process_time()
oomph.install()
print((imported - began) * 1000, (process_time() - began) * 1000)
"""


@dataclass(frozen=True)
class Wanted:
    """A PyTorch to try the wheel with.

    Attributes:
        torch: Its minor version.
        python: Of which Python; "": this one.
        owner: The environment that has it already; None: a fresh one gets it.
    """

    torch: str
    python: str = ""
    owner: Path | None = None

    @classmethod
    def of(cls, text: str) -> Wanted:
        """What the command line names: 2.15, 2.11=FOLDER or 3.12:2.11."""
        found = re.fullmatch(r"(?:(3\.\d+):)?(2\.\d+)(?:=(.+))?", text)
        if found is None:
            raise SystemExit(f"{text}: give 2.15, 2.11=FOLDER or 3.12:2.11")
        python, torch, owner = found.groups()
        return cls(torch, python or "", Path(owner) if owner else None)

    @property
    def name(self) -> str:
        """What the results call it."""
        return f"{self.torch}, Python {self.python}" if self.python else self.torch

    def find_python(self) -> str:
        """The interpreter to start from."""
        if not self.python:
            return sys.executable
        found = shutil.which(f"python{self.python}")
        if found is None:
            raise SystemExit(f"there is no python{self.python} on PATH")
        return found


@dataclass(frozen=True)
class Environment:
    """A Python with a PyTorch and the wheel."""

    python: Path

    def variables(self, path: str) -> dict[str, str]:
        """The environment of its processes, which find programs only in this path."""
        return {
            "PATH": path,
            "HOME": os.environ["HOME"],
            "XDG_CACHE_HOME": str(self.python.parent.parent / "cache"),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, program: str, card: str | None) -> str:
        """The last line of what went wrong, without a compiler; empty: nothing did."""
        variables = self.variables(str(self.python.parent))
        if card is not None:
            variables["OOMPH_SIMULATE"] = card
        done = subprocess.run(
            [self.python, "-c", textwrap.dedent(program)],
            env=variables,
            cwd=self.python.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        errors = re.findall(r"^[\w.]*(?:Error|Exit)\b.*", done.stderr, re.MULTILINE)
        said = [f"exit code {done.returncode}", *errors]
        return "" if done.returncode == 0 else said[-1]

    def tell(self, expression: str) -> str:
        """What an expression of torch, platform and oomph gives."""
        return self.say(f"import platform, torch, oomph; print({expression})")

    def say(self, program: str) -> str:
        """What a program prints."""
        command = [self.python, "-c", program]
        variables = self.variables(str(self.python.parent))
        return subprocess.check_output(
            command, text=True, cwd=self.python.parent, env=variables
        ).strip()

    def import_ms(self) -> list[float]:
        """How long oomph takes beyond PyTorch's import: until imported, and installed.

        That is the hook that PyTorch calls, the import, and the class that takes the
        place of PyTorch's; each the median of several processes.
        """
        times = [self.say(IMPORT).split() for _ in range(IMPORTS)]
        columns = zip(*times, strict=True)
        return [round(statistics.median(map(float, c)), 1) for c in columns]


def _install(python: Path, *packages: str) -> None:
    """Installs packages: by uv where there is one, which keeps what versions share."""
    uv = shutil.which("uv")
    pip = (
        [uv, "pip", "install", "--python", str(python)]
        if uv
        else [str(python), "-m", "pip", "install", "--no-cache-dir"]
    )
    subprocess.run([*pip, "--quiet", *packages], check=True)


def _create(folder: Path, python: str) -> Path:
    """An environment with pip; gives its interpreter."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    return folder / "bin" / "python"


def make(folder: Path, wanted: Wanted, wheel: Path, tools: list[str]) -> Environment:
    """A fresh environment with the wheel, a PyTorch from the index, and tools."""
    python = _create(folder, wanted.find_python())
    torch = f"torch=={wanted.torch}.*"
    _install(python, torch, "numpy", str(wheel))
    if tools:
        _install(python, torch, *tools)
    return Environment(python)


def borrow(folder: Path, owner: Path, wheel: Path) -> Environment:
    """A fresh environment with the wheel, that sees the PyTorch of another."""
    python = _create(folder, sys.executable)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (theirs,) = (owner / "lib").glob("python*/site-packages")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    (site / "zz_borrowed.pth").write_text(f"{theirs.resolve()}\n")
    return Environment(python)
