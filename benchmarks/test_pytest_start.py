"""What the pytest plugin adds to the start of a run that does not use it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TURNS = 5
# Of the plugins that are installed for tests, but for ours.
WITHOUT_OTHERS = "-p no:benchmark -p no:xdist -p no:xdist.looponfail -p no:anyio"


def command(folder: Path, with_plugin: bool) -> list[str]:
    options = f"-q -p no:cacheprovider {WITHOUT_OTHERS}".split()
    if not with_plugin:
        options += ["-p", "no:oomph"]
    return [sys.executable, "-m", "pytest", *options, str(folder)]


def environment(writes_bytecode: bool) -> dict[str, str]:
    ours = {
        k: v for k, v in os.environ.items() if not k.startswith(("OOMPH", "PYTEST"))
    }
    ours["PYTHONHASHSEED"] = "0"
    ours.pop("PYTHONDONTWRITEBYTECODE", None)
    return ours if writes_bytecode else {**ours, "PYTHONDONTWRITEBYTECODE": "1"}


def cpu_ms(start: list[str], variables: dict[str, str]) -> float:
    """Time that the processor works on a start, the best of some."""
    times = []
    for _ in range(TURNS):
        process = subprocess.Popen(start, env=variables, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        times.append((usage.ru_utime + usage.ru_stime) * 1e3)
    return min(times)


def instructions(start: list[str], variables: dict[str, str]) -> int:
    tool = "valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null"
    done = subprocess.run(
        [*tool.split(), *start],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"I +refs: +([\d,]+)", done.stderr)
    assert found is not None
    return int(found[1].replace(",", ""))


def forget_bytecode() -> None:
    """Removes what pytest has compiled of the plugin."""
    spec = importlib.util.find_spec("oomph_pytest")
    assert spec is not None and spec.origin is not None
    for path in Path(spec.origin).parent.glob("__pycache__/*-pytest-*.pyc"):
        path.unlink()


@pytest.mark.parametrize("bytecode", [True, False], ids=["bytecode", "no bytecode"])
def test_the_plugin_adds_little_to_the_start_of_pytest(figure, tmp_path, bytecode):
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind, which counts the instructions, is not installed")
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_empty.py").write_text("def test_nothing():\n    pass\n")
    start, without = command(folder, True), command(folder, False)
    variables = environment(bytecode)
    ms = cpu_ms(without, variables)
    if bytecode:
        cpu_ms(start, variables)  # the first writes it
    else:
        forget_bytecode()
    base, whole = instructions(without, variables), instructions(start, variables)
    figure(
        name=f"start of pytest with the plugin, {'' if bytecode else 'no '}bytecode",
        value=(whole - base) / base * ms,
        limit=5.0,
        unit="ms",
        kind="deterministic",
        how=f"cachegrind: {whole / 1e6:.1f} M instructions, without {base / 1e6:.1f} M "
        f"in {ms:.0f} ms of processor time",
    )
