"""A copy of the checkout with Python packages of its own, in which code is changed.

Both are kept in ``build/mutations``. A file of the copy is written only where its text
changes, so that ninja compiles no more than a mutation touches.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

from mutations.mutation import Mutation

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
TIMEOUT_S = 1800
# Builds what a file is part of, and nothing else, as setup.py has it.
BUILD = """
import runpy, sys
from setuptools import setup
described = runpy.run_path("setup.py")
changed, site, objects = sys.argv[1:]
setup(
    name="oomph",
    packages=[],
    ext_modules=[
        e for e in described["extensions"]() if changed in e.sources + e.depends
    ],
    cmdclass={"build_ext": described["Build"]},
    script_args=["-q", "build_ext", "-f", "-b", site, "-t", objects],
)
"""


class Failure(NamedTuple):
    """A test that failed, and the first line of its error."""

    test: str
    why: str


class Scratch:
    """The copy.

    Args:
        root: The checkout, whose tests run with this Python.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "build" / "mutations"
        self.checkout = self.folder / "checkout"
        self.python = self.folder / "venv" / "bin" / "python"
        self.site = self.folder / "venv" / "lib" / PYTHON / "site-packages"
        self._copy_checkout()
        self._make_environment()
        self.tests = self._collect()

    def _copy_checkout(self) -> None:
        listed = ("ls-files", "-z", "-co", "--exclude-standard")
        names = subprocess.check_output(["git", *listed], cwd=self.root, text=True)
        wanted = {Path(n) for n in names.split("\0") if n and (self.root / n).exists()}
        for name in wanted:
            self._write(name, (self.root / name).read_bytes())
            shutil.copymode(self.root / name, self.checkout / name)
        for path in [p for p in self.checkout.rglob("*") if p.is_file()]:
            name = path.relative_to(self.checkout)
            if name not in wanted and name.parts[0] != "build":
                path.unlink()

    def _write(self, name: Path, text: bytes) -> None:
        path = self.checkout / name
        if not path.exists() or path.read_bytes() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)

    def _make_environment(self) -> None:
        """The packages of this Python, but for oomph's, which are copies."""
        folder = self.folder / "venv"
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, symlinks=True)
        paths = [path for path in sys.path if path.endswith("site-packages")]
        (self.site / "_base.pth").write_text("\n".join(paths) + "\n")
        for path in Path(sys.executable).parent.iterdir():
            if not path.name.startswith("python") and path.is_file():
                self._copy_command(path)
        self.restore_packages()

    def _copy_command(self, path: Path) -> None:
        copy = self.python.parent / path.name
        text = path.read_bytes()
        if text.startswith(b"#!") and b"python" in text.partition(b"\n")[0]:
            text = b"#!%s\n" % bytes(self.python) + text.partition(b"\n")[2]
        copy.write_bytes(text)
        copy.chmod(0o755)

    def restore_packages(self) -> None:
        """Puts the packages there as they are installed."""
        installed = Path(sys.executable).parent.parent / "lib" / PYTHON
        for path in (installed / "site-packages").glob("oomph*"):
            copy = self.site / path.name
            if path.is_file():
                shutil.copy(path, copy)
                continue
            shutil.rmtree(copy, ignore_errors=True)
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, copy, ignore=unwanted)
        for name in ("oomph", "oomph_pytest"):  # which may have changed since
            for path in (self.root / "python" / name).rglob("*.py"):
                shutil.copy(path, self.site / path.relative_to(self.root / "python"))

    def put(self, mutation: Mutation) -> None:
        """Plants a mutation in the copy; what is compiled is not built yet."""
        mutation.plant.put(self.checkout)
        path = Path(mutation.file)
        if path.suffix == ".py":
            place = self.site / path.relative_to("python")
            shutil.copy(self.checkout / path, place)

    def restore(self, mutation: Mutation) -> None:
        """Takes it out again."""
        name = Path(mutation.file)
        self._write(name, (self.root / name).read_bytes())
        self.restore_packages()

    def build_packages(self, mutation: Mutation) -> None:
        """Builds the library that a mutation is in, if it is in one."""
        if mutation.file.startswith("csrc/"):
            objects = self.folder / "objects"
            self._run("-c", BUILD, mutation.file, str(self.site), str(objects))

    def build_programs(self, sanitizer: str, programs: list[str]) -> None:
        """Builds C tests, so that it is no test that says what is no C."""
        self._run("tools/c_tests.py", sanitizer, *programs)

    def failing_program(self, programs: list[str]) -> Failure | None:
        """Runs C tests without a sanitizer, which is quick, to the first that fails."""
        known = [p for p in programs if (self.checkout / f"tests/c/{p}.c").exists()]
        if known:
            self.build_programs("none", known)
        for program in known:
            try:
                done = subprocess.run(
                    [self.checkout / "build" / "c" / "none" / program],
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return Failure(f"tests/c/{program}.c", "it hangs")
            if done.returncode != 0:
                said = (done.stdout + done.stderr).strip().splitlines()
                why = said[-1] if said else f"exit code {done.returncode}"
                return Failure(f"tests/c/{program}.c", why)
        return None

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=self.checkout,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"what was to be built:\n{done.stdout}{done.stderr}")

    def _pytest(self, *arguments: str) -> tuple[int, str]:
        """How pytest ended, and what it said; a hang is a failure, too."""
        command = [str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, "-o", "addopts=", *arguments],
                cwd=self.checkout,
                env={**os.environ, "COLUMNS": "240"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 1, "FAILED: it hangs"
        return done.returncode, done.stdout

    def _collect(self) -> list[str]:
        """The names of the tests that ``make test`` runs."""
        code, said = self._pytest("--collect-only", "-m", "not long", "tests")
        if code != 0:
            raise RuntimeError(said)
        return [line for line in said.splitlines() if "::" in line]

    def failing(self, tests: list[str], *, all_of_them: bool = False) -> list[Failure]:
        """Runs tests to the first that fails, or all; gives those that failed.

        Raises:
            RuntimeError: They could not be run.
        """
        code, said = self._pytest("-rfE", *([] if all_of_them else ["-x"]), *tests)
        if code == 0:
            return []
        lines = re.findall(r"^(?:FAILED|ERROR):? (.*?)(?: - (.*))?$", said, re.M)
        if code != 1 or not lines:
            raise RuntimeError(f"pytest ended with {code}:\n{said}")
        return [Failure(*line) for line in lines]

    def first_failure(self, tests: list[str]) -> Failure | None:
        """The first that fails, and not because this machine has too much to do."""
        while tests:
            failed = self.failing(tests)
            if not failed:
                return None
            test = failed[0].test
            if "Timeout" not in failed[0].why or self.failing([test]):
                return failed[0]
            tests = tests[tests.index(test) + 1 :]
        return None
