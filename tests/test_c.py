"""The C tests, under sanitizers, and the programs for hardware, on the simulated GPU.

tools/c_tests.py builds into build/c and leaves there what it made, for the next time.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
from support import ROOT, execute

FOLDER = ROOT / "tests" / "c"
OPTIONS = {
    "address": {
        "ASAN_OPTIONS": "detect_leaks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    },
    # Where each call fails in turn, every one of them ends a process.
    "thread": {"TSAN_OPTIONS": "halt_on_error=1:atexit_sleep_ms=20"},
    "none": {},
}
PROGRAMS = sorted(p.stem for p in [*FOLDER.glob("test_*.c"), *FOLDER.glob("sim_*.c")])
# Those that start threads, and those whose subject threads share.
THREADED = [
    *("sim_threads", "test_alloc", "test_guard", "test_host", "test_pinned"),
    *("test_policy", "test_random", "test_threads"),
]
SHARDS = {"test_faults": 4}  # that it is divided into, as it takes minutes
LONG = {("address", "test_faults"), *(("thread", program) for program in THREADED)}
PLAIN = ["test_faults"]  # that run without a sanitizer, too, where that is too long
RUNS = [
    pytest.param(
        kind,
        program,
        f"{shard}/{count}",
        marks=[
            pytest.mark.xdist_group(f"{kind}-{program}-{shard}"),
            *([pytest.mark.long] if (kind, program) in LONG else []),
        ],
        id="-".join([kind, program, *([] if count == 1 else [str(shard)])]),
    )
    for kind, programs in (
        ("address", PROGRAMS),
        ("thread", THREADED),
        ("none", PLAIN),
    )
    for program in programs
    for count in [1 if kind == "none" else SHARDS.get(program, 1)]
    for shard in range(count)
]


@functools.cache
def why_not(sanitizer: str) -> str | None:
    """Why the sanitizer does not work here, as the compiler says; None: it does."""
    flags = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}
    if sanitizer not in flags:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.c"
        source.write_text("int main(void) { return 0; }\n")
        command = [os.environ.get("CC", "cc"), flags[sanitizer], source, "-o"]
        built = execute(*command, Path(folder) / "empty")
        if built.code != 0:
            return built.said
        ran = execute(Path(folder) / "empty")
        return None if ran.code == 0 else ran.said


@functools.cache
def build(sanitizer: str) -> Path:
    """Builds what runs under a sanitizer, one worker at a time; gives the folder."""
    programs = {"address": PROGRAMS, "thread": THREADED, "none": PLAIN}[sanitizer]
    tool = ROOT / "tools" / "c_tests.py"
    with open(tool) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = execute(sys.executable, tool, sanitizer, *programs, timeout=900)
    if made.code != 0:
        pytest.fail(made.said, pytrace=False)
    return ROOT / "build" / "c" / sanitizer


@pytest.mark.parametrize(("sanitizer", "program", "shard"), RUNS)
def test_a_c_program_passes_under_a_sanitizer(sanitizer, program, shard):
    reason = why_not(sanitizer)
    if reason is not None:
        pytest.skip(f"the {sanitizer} sanitizer does not work here: {reason.strip()}")
    options = {**OPTIONS[sanitizer], "OOMPH_TEST_SHARD": shard}
    result = execute(build(sanitizer) / program, timeout=600, **options)
    if result.code != 0:
        pytest.fail(f"exit code {result.code}\n{result.said}", pytrace=False)
    assert " passed" in result.out


# Runs a script; what it starts are forks, as itself.
FORKING = """
import os, processes, runpy, subprocess, sys
subprocess.run = processes.run_captured
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_on_simulated_gpu(
    parts: str, results: Path, card: str = "4GiB", forking: bool = True
) -> dict:
    """Runs parts of ``make gpu`` on a simulated card; gives what it wrote."""
    how = ["-c", FORKING] if forking else []
    script = ROOT / "benchmarks" / "gpu.py"
    chosen = ("--simulate", card, "--parts", parts, "--results", results)
    done = execute(sys.executable, *how, script, *chosen, timeout=600)
    assert done.code == 0, done.said
    return json.loads(next(results.glob("*.json")).read_text())["parts"]


@pytest.mark.parametrize("device_count", [1, 2])
def test_the_simulated_driver_conforms_to_what_the_real_one_documents(
    tmp_path, device_count
):
    card = f"4GiB,devices={device_count}"
    found = run_on_simulated_gpu("conformance", tmp_path, card)["conformance"]
    by_kind = {
        kind: [r["name"] for r in found["results"] if r["result"] == kind]
        for kind in ("ok", "differs", "waived")
    }
    assert len(by_kind["ok"]) > 150
    assert by_kind["differs"] == []
    assert by_kind["waived"] == (["several_devices"] if device_count == 1 else [])


@pytest.mark.long
def test_the_measurements_for_hardware_run_on_the_simulated_gpu(tmp_path):
    parts = run_on_simulated_gpu("costs,waiting", tmp_path, forking=False)
    assert {part: bool(parts[part]["results"]) for part in parts} == {
        "costs": True,
        "waiting": True,
    }


@pytest.mark.long
def test_shapes_and_values_make_the_same_allocations_event_by_event(tmp_path):
    found = run_on_simulated_gpu("traces", tmp_path)["traces"]["results"]
    assert len(found) == 8  # four programs with two allocators
    for comparison in found:
        assert min(comparison["events"]) > 100
        parts = ("requests", "libraries", "segments")
        assert [comparison[part] for part in parts] == [None, [], None], comparison


@pytest.mark.long
def test_the_clock_of_a_simulated_card_differs_in_nothing_from_itself(tmp_path):
    parts = run_on_simulated_gpu("clock", tmp_path, "4GiB,gpu=rtx3060")
    times = parts["clock"]["results"]
    assert {time["measure"] for time in times} == {"link", "operator", "step"}
    assert [t for t in times if abs(t["ratio"] - 1) > 0.01] == []
