"""Runs the wheel as a stranger does, with each PyTorch, and writes what works.

For each version a fresh environment gets that PyTorch and the wheel from dist/, and is
removed afterwards: 5 GB each. No compiler can be found there. A version may also be the
folder of an environment that is there already.

    python tools/try_versions.py 2.10 2.11 2.15
    python tools/try_versions.py 2.11=.venv

Results are kept in benchmarks/results/versions.json, those of other versions as they
are, and shown in docs/versions.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import venv
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
CARD = "1GiB,memory=values"

# Each is a program, which says nothing of what is wrong but by an exception.
CHECKS = {
    "installs": """
        import oomph, torch
        oomph.install()
        assert oomph.is_installed()
        """,
    "simulated GPU": """
        import oomph, torch
        oomph.install()
        x = torch.arange(6.0, device="cuda", requires_grad=True)
        (x * x).sum().backward()
        assert x.grad.tolist() == [0, 2, 4, 6, 8, 10]
        """,
    "falls back to the host": """
        import oomph, torch
        oomph.install(host_limit="2GiB")
        blocks = [torch.full((64 << 20,), float(i), device="cuda") for i in range(6)]
        assert [int(block[-1]) for block in blocks] == list(range(6))
        assert oomph.stats()["host_bytes"] > 0
        """,
    "PyTorch's statistics": """
        import oomph, torch
        oomph.install()
        x = torch.ones(1 << 20, device="cuda")
        assert torch.cuda.memory_allocated() == 4 << 20
        assert torch.cuda.memory_stats()["num_ooms"] == 0
        torch.cuda.memory._record_memory_history(stacks="python")
        y = torch.ones(1 << 20, device="cuda")
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        assert "alloc" in [entry["action"] for entry in trace]
        """,
    "streams": """
        import oomph, torch
        oomph.install()
        side = torch.cuda.Stream()
        x = torch.ones(1 << 20, device="cuda")
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.current_stream())
            y = x * 2
            x.record_stream(side)
        del x
        torch.cuda.current_stream().wait_stream(side)
        assert float((y + 1).sum()) == 3 << 20
        """,
    "graphs and MemPools": """
        import oomph, torch
        oomph.install()
        x = torch.ones(1 << 10, device="cuda")
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
        with torch.cuda.graph(graph):
            y = x * 3
        graph.replay()
        assert float(y.sum()) == 3 << 10
        with torch.cuda.use_mem_pool(pool):
            z = torch.ones(1 << 20, device="cuda")
        assert pool.snapshot()
        """,
    "offload by the planner": """
        import oomph, torch
        oomph.install(host_limit="4GiB")
        net = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh())
              for _ in range(12)))
        net.cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(40000, 256, device="cuda")
        for _ in range(3):
            net(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        oomph._C.check(0)
        """,
    "out-of-memory report": """
        import oomph, torch
        oomph.install(offload="off")
        try:
            kept = [torch.ones(64 << 20, device="cuda") for _ in range(9)]
        except torch.OutOfMemoryError as error:
            assert "oomph" in str(error)
        else:
            raise SystemExit("no error")
        """,
}

PAGE_TEXT = (
    "# Versions of PyTorch\n\n"
    "One wheel serves each PyTorch from 2.10 to 2.15, and each Python from 3.10 on. "
    "`make test-versions` installs it beside each PyTorch in a fresh environment "
    "without a compiler, runs these checks, and writes this page.\n\n"
    "{table}\n\n"
    "For another PyTorch, such as a nightly, oomph builds what is missing once, where "
    "there is a C++ compiler: see [error texts](errors.md#installing).\n"
)


@dataclass
class Environment:
    """A Python with a PyTorch and the wheel."""

    python: Path

    def run(self, program: str, card: str | None) -> str:
        """The last line of what went wrong; empty: nothing did."""
        variables = {
            "PATH": str(self.python.parent),  # no compiler
            "HOME": os.environ["HOME"],
            "XDG_CACHE_HOME": str(self.python.parent.parent / "cache"),
            "OMP_NUM_THREADS": "1",
        }
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
        code = f"import platform, torch, oomph; print({expression})"
        return subprocess.check_output(
            [self.python, "-c", code], text=True, cwd=self.python.parent
        ).strip()


def make(folder: Path, version: str, wheel: Path) -> Environment:
    """A fresh environment with a PyTorch from the index and the wheel."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, f"torch=={version}.*", "numpy", str(wheel)], check=True)
    return Environment(python)


def borrow(folder: Path, owner: Path, wheel: Path) -> Environment:
    """A fresh environment with the wheel, that sees the PyTorch of another."""
    venv.create(folder, with_pip=True, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (theirs,) = (owner / "lib").glob("python*/site-packages")
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    (site / "zz_borrowed.pth").write_text(f"{theirs.resolve()}\n")
    return Environment(python)


def examine(environment: Environment, wheel: Path) -> dict[str, Any]:
    """What works in an environment."""
    found = {name: environment.run(code, CARD) for name, code in CHECKS.items()}
    # Without a card and without a driver oomph's class goes in all the same.
    found["installs"] = environment.run(CHECKS["installs"], None)
    return {
        "oomph": environment.tell("oomph.__version__"),
        "torch": environment.tell("torch.__version__"),
        "cuda": environment.tell("torch.version.cuda"),
        "python": environment.tell("platform.python_version()"),
        "wheel_bytes": wheel.stat().st_size,
        "date": date.today().isoformat(),
        "checks": found,
    }


def mark(error: str) -> str:
    """A check's result in a table."""
    return f"no: {error}" if error else "yes"


def page(results: dict[str, Any]) -> str:
    """The table as Markdown."""
    order = sorted(results, key=lambda minor: tuple(map(int, minor.split("."))))
    rows = [
        ["PyTorch", *(results[minor]["torch"] for minor in order)],
        ["---", *("---" for _ in order)],
        ["CUDA", *(results[minor]["cuda"] for minor in order)],
        ["Python", *(results[minor]["python"] for minor in order)],
        *(
            [name, *(mark(results[minor]["checks"][name]) for minor in order)]
            for name in CHECKS
        ),
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return PAGE_TEXT.format(table=table)


def main() -> int:
    """Tries the versions named; gives 1 if anything does not work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="+", help="such as 2.15, or 2.11=FOLDER")
    options = parser.parse_args()
    (wheel,) = (ROOT / "dist").glob("oomph-*.whl")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for wanted in options.versions:
        minor, _, owner = wanted.partition("=")
        folder = Path(tempfile.mkdtemp(prefix=f"oomph-{minor}-"))
        try:
            environment = (
                borrow(folder, Path(owner), wheel)
                if owner
                else make(folder, minor, wheel)
            )
            results[minor] = examine(environment, wheel)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"PyTorch {minor}: {results[minor]['checks']}", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(page(results))
    return int(any(any(r["checks"].values()) for r in results.values()))


if __name__ == "__main__":
    sys.exit(main())
