"""What the benchmarks share: running programs, and building them."""

from __future__ import annotations

import json
import os
import re
import runpy
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
                *(sys.executable, "-m", "oomph", "run", "--simulate", card),
                *("--allocator", allocator, "--stats", str(stats), *chosen),
                *(str(script), *arguments),
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
            *("cc", "-std=c17", "-D_GNU_SOURCE", "-DNDEBUG", "-O3", "-flto=auto"),
            *setup["system_includes"](setup["cuda_includes"]()),
            *(f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc' / 'sim'}"),
            *(str(NATIVE / f"{program}.c"), *map(str, core)),
            *("-o", str(out), "-lpthread", "-ldl"),
        ],
        check=True,
    )
    return out


def build_with_torch(program: str, folder: Path, shared: bool) -> Path:
    """Compiles a C++ program against c10's CUDA library."""
    setup = setup_functions()
    torch = torch_folder()
    out = folder / (f"{program}.so" if shared else program)
    libraries = [str(SIMULATION / name) for name in ("libcudart.so.13", "libcuda.so.1")]
    subprocess.run(
        [
            *("c++", "-std=c++20", "-O2", "-pthread"),
            *(["-fPIC", "-shared"] if shared else []),
            *setup["system_includes"]([torch / "include"]),
            *setup["system_includes"](setup["cuda_includes"]()),
            *(str(NATIVE / f"{program}.cpp"), "-o", str(out)),
            *(f"-L{torch / 'lib'}", "-lc10", "-lc10_cuda"),
            *([] if shared else libraries),
            *(f"-Wl,-rpath,{torch / 'lib'}", f"-Wl,-rpath-link,{SIMULATION}"),
        ],
        check=True,
    )
    return out


def on_simulated_card(card: str = CARD) -> dict[str, str]:
    """The environment in which a compiled program finds the simulated GPU."""
    libraries = ":".join(
        str(SIMULATION / name) for name in ("libcuda.so.1", "libcudart.so.13")
    )
    return environment(
        LD_PRELOAD=libraries, LD_LIBRARY_PATH=str(SIMULATION), OOMPH_SIMULATE=card
    )


def numbers(text: str) -> dict[str, float]:
    """Reads lines of ``name value``."""
    return {
        name: float(value)
        for name, value in re.findall(r"^(\w+) ([-+.\deE]+)$", text, re.M)
    }
