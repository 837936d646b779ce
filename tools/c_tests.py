"""``tools/c_tests.py none|address|thread [PROGRAM...]``: builds the C tests.

Sources, flags and sanitizers are setup.py's; what tests/c adds is found by its names:
``test_*.c`` are programs on the core and the simulated driver, ``sim_*.c`` on that
alone, all other files are what several programs of the first kind share. ninja builds
what has changed, into build/c/SANITIZER, where the programs then lie.
"""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "c"
RULES = """
rule compile
  command = $cc $flags -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc

rule link
  command = $cc $flags $in -o $out $libraries
"""


@dataclass(frozen=True)
class Unit:
    """A source, its flags, and the object that it becomes, within the folder."""

    source: Path
    flags: list[str]

    @property
    def object(self) -> str:
        """Where the object lies."""
        return f"{self.source.relative_to(ROOT)}.o"


class Tests:
    """The C tests as they are built for one sanitizer."""

    def __init__(self, setup: dict[str, Any], sanitizer: str) -> None:
        self.out = ROOT / "build" / "c" / sanitizer
        self.sanitizer: list[str] = setup["SANITIZERS"].get(sanitizer, [])
        self._libraries: list[str] = setup["C_LIBRARIES"]
        headers = setup["system_includes"](setup["cuda_includes"]())
        # Sanitizers tell lines; what debuggers tell besides takes a fifth of a build.
        plain = ["-O1", "-g1" if self.sanitizer else "-g", "-fPIC"]
        self._flags = [
            *(*setup["C_FLAGS"], *headers, *plain),
            *(*self.sanitizer, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
        ]
        self.core = self._units([ROOT / s for s in setup["core_sources"]()], "csrc")
        driver = [ROOT / s for s in setup["simulated_driver_sources"]()]
        self.driver = self._units(driver, "csrc/sim")
        self.shared = self._units(
            [p for p in FOLDER.glob("*.c") if not p.name.startswith(("test_", "sim_"))],
            *("csrc", "csrc/sim"),
        )
        programs = [*FOLDER.glob("test_*.c"), *FOLDER.glob("sim_*.c")]
        self.programs = self._units(programs, "csrc", "csrc/sim")

    def _units(self, sources: list[Path], *includes: str) -> list[Unit]:
        folders = [f"-I{ROOT / name}" for name in includes]
        return [Unit(source, [*self._flags, *folders]) for source in sorted(sources)]

    def units(self) -> list[Unit]:
        """All that is compiled."""
        return [*self.core, *self.driver, *self.shared, *self.programs]

    def write(self) -> None:
        """Writes build.ninja into the folder."""
        lines = [RULES, f"cc = {os.environ.get('CC', 'cc')}"]
        for unit in self.units():
            lines += [
                f"build {unit.object}: compile {unit.source}",
                f"  flags = {' '.join(unit.flags)}",
            ]
        library = "libcuda.so.1"
        lines += self._link(library, self.driver, f"-shared -Wl,-soname,{library}")
        for program in self.programs:
            of_core = program.source.name.startswith("test_")
            units = [program, *(self.shared + self.core if of_core else [])]
            flags = "-Wl,-rpath,'$$ORIGIN'"
            lines += self._link(program.source.stem, units, flags, library)
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "build.ninja").write_text("\n".join(lines) + "\n")

    def _link(
        self, name: str, units: list[Unit], flags: str, library: str = ""
    ) -> list[str]:
        inputs = [*(unit.object for unit in units), *filter(None, [library])]
        return [
            f"build {name}: link {' '.join(inputs)}",
            f"  flags = {' '.join(self.sanitizer)} {flags}",
            f"  libraries = {' '.join(self._libraries)}",
        ]


def build(sanitizer: str, programs: list[str], jobs: int = 2) -> Path:
    """Builds the programs, or all; gives the folder. Raises CalledProcessError."""
    tests = Tests(runpy.run_path(str(ROOT / "setup.py")), sanitizer)
    tests.write()
    ninja = Path(sys.executable).parent / "ninja"
    command = [str(ninja), "--quiet", f"-j{jobs}", *programs]
    subprocess.run(command, cwd=tests.out, check=True, capture_output=True, text=True)
    return tests.out


def main() -> int:
    """Builds what is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sanitizer", choices=("none", "address", "thread"))
    parser.add_argument("programs", nargs="*", help="all if none is named")
    chosen = parser.parse_args()
    try:
        build(chosen.sanitizer, chosen.programs)
    except subprocess.CalledProcessError as error:
        print(error.stdout + error.stderr, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
