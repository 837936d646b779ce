"""What the benchmarks share: running programs, and building them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import oomph

ROOT = Path(__file__).parent.parent
NATIVE = Path(__file__).parent / "native"
SIMULATION = Path(oomph.__file__).parent / "_sim"
CARD = "96GiB,context=512MiB"
GIB = 1 << 30
MIB = 1 << 20


@dataclass
class Result:
    """What became of a script."""

    code: int
    output: str
    error: str
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def out_of_memory(self) -> bool:
        """Whether it died of it."""
        return "torch.OutOfMemoryError" in self.error


def environment(**variables: str) -> dict[str, str]:
    """This environment with nothing of oomph's but what is given."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OOMPH_")}
    return {**kept, **variables}


def command(script: Path, allocator: str, card: str, *options: str) -> list[str]:
    """What runs a script on a simulated card; its own arguments come after."""
    return [
        *(sys.executable, "-m", "oomph", "run", "--simulate", card),
        *("--allocator", allocator, *options, str(script)),
    ]


def run_script(
    script: Path,
    arguments: list[str],
    allocator: str = "oomph",
    card: str = CARD,
    settings: str = "",
) -> Result:
    """Runs a training script on a simulated card."""
    with tempfile.TemporaryDirectory() as folder:
        stats = Path(folder) / "stats.json"
        chosen = ["--set", settings] if settings and allocator == "oomph" else []
        process = subprocess.run(
            [
                *command(script, allocator, card, "--stats", str(stats), *chosen),
                *arguments,
            ],
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
        )
        kept = json.loads(stats.read_text()) if stats.exists() else {}
    return Result(process.returncode, process.stdout, process.stderr, kept.get("0", {}))


def must_run(script: Path, arguments: list[str], **options: str) -> Result:
    """The same for a script that must finish."""
    result = run_script(script, arguments, **options)
    assert result.code == 0, result.error[-3000:]
    return result


def run_snippet(code: str, allocator: str, card: str = CARD) -> str:
    """Runs Python code with one of the allocators; gives what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "snippet.py"
        script.write_text(code)
        return must_run(script, [], allocator=allocator, card=card).output


def batches(code: str, pair: str, count: int, rounds: int = 150) -> Batches:
    """Times ``pair`` in a process a side, a batch of ``count`` in each, in turn.

    The processes live side by side and one of them works at a time, for tens of
    milliseconds: what slows the machine for longer slows all sides of a round.

    Args:
        code: What comes before, once.
        pair: What is timed.
        count: How often in a batch.
        rounds: How many batches a side, after one that is not counted.
    """
    loop = (
        f"import sys, time\n{code}\n"
        "for _ in sys.stdin:\n"
        "    start = time.perf_counter()\n"
        f"    for _ in range({count}):\n        {pair}\n"
        f"    print((time.perf_counter() - start) / {count} * 1e9, flush=True)\n"
    )
    found: dict[str, list[float]] = {"native": [], "expandable": [], "oomph": []}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        script = Path(folder) / "loop.py"
        script.write_text(loop)
        sides = {
            side: stack.enter_context(
                subprocess.Popen(
                    command(script, side, CARD),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment(),
                )
            )
            for side in found
        }
        for i in range(rounds + 1):
            for side, process in sides.items():
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                ns = float(process.stdout.readline())
                if i > 0:
                    found[side].append(ns)
        for process in sides.values():
            process.communicate()
    return Batches(found)


@dataclass
class Batches:
    """Nanoseconds of each batch, by side; the batches of a round stand at one place."""

    ns: dict[str, list[float]]

    def median(self, side: str) -> float:
        """The median of a side."""
        return statistics.median(self.ns[side])

    def ratio(self) -> float:
        """oomph to the faster native, as the median over the rounds."""
        faster = min("native", "expandable", key=self.median)
        rounds = zip(self.ns["oomph"], self.ns[faster], strict=True)
        return statistics.median(ours / its for ours, its in rounds)

    def __str__(self) -> str:
        values = ", ".join(f"{side} {self.median(side):.0f} ns" for side in self.ns)
        return f"median of {len(self.ns['oomph'])} alternating batches: {values}"


def alternate(
    measure: Callable[[str], float], sides: list[str], rounds: int = 7
) -> dict[str, list[float]]:
    """Measures the sides in turn, so that a busy machine is busy for all of them."""
    found: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            found[side].append(measure(side))
    return found


def torch_folder() -> Path:
    """Where PyTorch is, without importing it."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def setup_functions() -> dict[str, Any]:
    """The functions of setup.py, which knows where headers are and the flags."""
    return runpy.run_path(str(ROOT / "setup.py"))


def build_with_core(program: str, folder: Path) -> Path:
    """Compiles a C program together with the core, as the extension is."""
    setup = setup_functions()
    core = [ROOT / name for name in setup["core_sources"]()]
    out = folder / program
    subprocess.run(
        [
            *(setup["c_compiler"](), *setup["core_flags"]()),
            *setup["system_includes"](setup["cuda_includes"]()),
            *(f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc' / 'sim'}"),
            *(str(NATIVE / f"{program}.c"), *map(str, core)),
            *("-o", str(out), *setup["C_LIBRARIES"]),
        ],
        check=True,
    )
    return out


def simulated_libraries() -> list[str]:
    """The simulated runtime for this PyTorch's CUDA, and the driver below it."""
    cuda = runpy.run_path(str(torch_folder() / "version.py"))["cuda"]
    names = (f"libcudart.so.{cuda.partition('.')[0]}", "libcuda.so.1")
    return [str(SIMULATION / name) for name in names]


def build_with_torch(program: str, folder: Path, shared: bool) -> Path:
    """Compiles a C++ program against c10's CUDA library."""
    setup = setup_functions()
    torch = torch_folder()
    out = folder / (f"{program}.so" if shared else program)
    subprocess.run(
        [
            *("c++", setup["BUILDING"]["STANDARD"], "-O2", "-pthread"),
            *(["-fPIC", "-shared"] if shared else []),
            *setup["system_includes"]([torch / "include"]),
            *setup["system_includes"](setup["cuda_includes"]()),
            *(str(NATIVE / f"{program}.cpp"), "-o", str(out)),
            *(f"-L{torch / 'lib'}", "-lc10", "-lc10_cuda"),
            *([] if shared else simulated_libraries()),
            *(f"-Wl,-rpath,{torch / 'lib'}", f"-Wl,-rpath-link,{SIMULATION}"),
        ],
        check=True,
    )
    return out


def on_simulated_card(card: str = CARD) -> dict[str, str]:
    """The environment in which a compiled program finds the simulated GPU."""
    return environment(
        LD_PRELOAD=":".join(reversed(simulated_libraries())),
        LD_LIBRARY_PATH=str(SIMULATION),
        OOMPH_SIMULATE=card,
    )


def numbers(text: str) -> dict[str, float]:
    """Reads lines of ``name value``."""
    return {
        name: float(value)
        for name, value in re.findall(r"^(\w+) ([-+.\deE]+)$", text, re.M)
    }
