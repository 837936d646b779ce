"""Whole training scripts ask oomph for exactly what they ask PyTorch's allocator for.

Each script runs three times: with PyTorch's allocator, with oomph, and with oomph on a
card that is too small, where some blocks are born on host.
"""

from __future__ import annotations

import gc
import itertools
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support import MIB, ROOT, TESTS, Simulated

SMALL_MIB = 512
native = Simulated("4GiB,context=0", None)
roomy = Simulated("4GiB,context=0", "reserve:0,offload:off")
small = Simulated(f"{SMALL_MIB}MiB,context=0", "reserve:192MiB,host_limit:4GiB")


# ---- In the process that trains


def run_script(script: str, arguments: list[str]) -> None:
    """Runs a script as if it had been started; what it leaves behind is freed."""
    before = sys.argv
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = before
    torch.cuda.synchronize()


def record(script: str, arguments: list[str]) -> dict[str, Any]:
    """Trains, and tells what was asked for."""
    rescued = rescues()
    gc.disable()  # when it frees cycles depends on all objects of the process
    torch.cuda.memory._record_memory_history(context=None)
    try:
        run_script(script, arguments)
        gc.collect()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.set_per_process_memory_fraction(1.0)
        gc.enable()
    stats = torch.cuda.memory_stats()
    return {
        "requests": requests(trace),
        "requested_peak": stats["requested_bytes.all.peak"],
        "allocated_peak": stats["allocated_bytes.all.peak"],
        "rescues": rescues() - rescued,
    }


def rescues() -> int:
    import oomph

    return oomph.stats()["rescues"] if oomph.is_installed() else 0


def requests(trace: list[dict[str, Any]]) -> list[list[int]]:
    """Allocations (number, size, stream) and frees (number), without addresses."""
    streams: dict[int, int] = {}
    live: dict[int, int] = {}
    found: list[list[int]] = []
    for entry in trace:
        if entry["action"] == "alloc":
            number = len(found)
            live[entry["addr"]] = number
            stream = streams.setdefault(entry["stream"], len(streams))
            found.append([number, entry["size"], stream])
        elif entry["action"] == "free_requested":
            found.append([live.pop(entry["addr"])])
    return found


# ---- In the process of pytest


@dataclass(frozen=True)
class Run:
    """One training script with its arguments."""

    name: str
    script: Path
    arguments: str = ""
    threads: bool = False  # which thread is first is chance

    def on(self, process: Simulated) -> dict[str, Any]:
        return process.call(
            "test_training", "record", str(self.script), self.arguments.split()
        )


def ordered(run: Run, found: list[list[int]]) -> list[Any]:
    """The requests, but for what is left to chance.

    Frees that follow each other are sorted: autocast frees its copies of weights in an
    order that depends on addresses of the host. Those of threads are told by stream.
    """
    if run.threads:
        return sorted(by_stream(found))
    groups = itertools.groupby(found, len)
    return [
        request
        for length, group in groups
        for request in (sorted(group) if length == 1 else group)
    ]


def by_stream(found: list[list[int]]) -> list[list[list[int]]]:
    """The requests on each stream, their numbers counted from its first."""
    streams: dict[int, list[list[int]]] = {}
    numbers: dict[int, tuple[int, int]] = {}
    for number, *rest in found:
        if rest:
            size, stream = rest
            own = streams.setdefault(stream, [])
            numbers[number] = stream, len(own)
            own.append([len(own), size])
        else:
            stream, own_number = numbers[number]
            streams[stream].append([own_number])
    return list(streams.values())


def only_one_stream(found: list[list[int]]) -> bool:
    """Whether no free has to wait for another stream, which takes its time."""
    return len({stream for _, *rest in found if rest for stream in rest[1:]}) == 1


GPT = ROOT / "examples" / "train_gpt.py"
SMALL_GPT = "--layers 3 --heads 8 --width 768 --vocabulary 4096 --block 128 --batch 48"
SCRIPTS = TESTS / "scripts"
HABITS = SCRIPTS / "train_habits.py"
RUNS = [
    Run(
        "a GPT evaluated first, autocast and fused AdamW",
        GPT,
        f"{SMALL_GPT} --amp --fused --evaluate 1",
    ),
    Run(
        "a GPT with dropout, accumulating",
        GPT,
        f"{SMALL_GPT} --accumulate 2 --dropout 0.1",
    ),
    Run("a checkpointed GPT", GPT, f"{SMALL_GPT} --checkpoint --amp --batch 128"),
    Run("a ResNet", SCRIPTS / "train_resnet.py", "--full --batch 8"),
    Run(
        "a ResNet in float16, channels last",
        SCRIPTS / "train_resnet.py",
        "--full --batch 16 --amp --channels-last",
    ),
    Run("varying lengths", SCRIPTS / "train_lengths.py", "--batch 400"),
    Run(
        "growing lengths, autocast",
        SCRIPTS / "train_lengths.py",
        "--batch 400 --sorted --amp",
    ),
    Run("three streams", SCRIPTS / "train_streams.py", "--batch 1200"),
    Run("three streams, autocast", SCRIPTS / "train_streams.py", "--batch 1600 --amp"),
    Run(
        "checkpoints, and evaluation",
        HABITS,
        "--batch 24000 --checkpoint plain --evaluate",
    ),
    Run(
        "reentrant checkpoints, accumulating",
        HABITS,
        "--batch 24000 --checkpoint reentrant --accumulate 2",
    ),
    Run(
        "gradients that are kept",
        HABITS,
        "--batch 16384 --accumulate 2 --keep-gradients",
    ),
    Run("an emptied cache", HABITS, "--batch 16384 --empty-cache --evaluate"),
    Run("inputs in a MemPool, profiled", HABITS, "--batch 16384 --pool --profile"),
    Run("a memory fraction", HABITS, "--batch 16384 --fraction 0.95"),
    Run("three threads", HABITS, "--width 1024 --batch 2048 --threads 3", threads=True),
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_training_asks_for_the_same_memory_with_and_without_enough(run):
    expected, with_room, rescued = (run.on(p) for p in (native, roomy, small))
    assert len(expected["requests"]) > 500
    assert ordered(run, with_room["requests"]) == ordered(run, expected["requests"])
    assert ordered(run, rescued["requests"]) == ordered(run, expected["requests"])
    assert expected["requested_peak"] > SMALL_MIB * MIB
    assert rescued["rescues"] > 0
    assert with_room["rescues"] == 0
    if not run.threads:
        assert with_room["allocated_peak"] <= expected["allocated_peak"]
    if only_one_stream(expected["requests"]):
        assert with_room["requested_peak"] == expected["requested_peak"]
        assert rescued["requested_peak"] == expected["requested_peak"]
