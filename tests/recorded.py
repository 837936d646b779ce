"""Runs a training script and records what it asks of the allocator.

Used in a process that runs the bodies of tests, or by itself, also by torchrun:

    python recorded.py RESULT SCRIPT [ARGUMENT ...]

writes to ``RESULT.0``, or to the number of the rank.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import runpy
import sys
from typing import Any

import torch


def run_script(script: str, arguments: list[str]) -> None:
    """Runs a script as if it had been started; what it leaves behind is freed."""
    before = sys.argv
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = before
    torch.cuda.synchronize()


def trace(
    script: str, arguments: list[str], context: str | None = None
) -> list[dict[str, Any]]:
    """Trains; gives PyTorch's trace of it, with stacks if there is a context."""
    gc.disable()  # when it frees cycles depends on all objects of the process
    torch.cuda.memory._record_memory_history(context=context)
    try:
        run_script(script, arguments)
        gc.collect()
        traces = torch.cuda.memory._snapshot()["device_traces"]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.set_per_process_memory_fraction(1.0)
        gc.enable()
    return traces[torch.cuda.current_device()]


def record(script: str, arguments: list[str]) -> dict[str, Any]:
    """Trains, and tells what was asked for."""
    rescued = rescues()
    plan_nothing()
    traced = trace(script, arguments)
    stats = torch.cuda.memory_stats()
    return {
        "requests": requests(traced),
        "requested_peak": stats["requested_bytes.all.peak"],
        "allocated_peak": stats["allocated_bytes.all.peak"],
        "rescues": rescues() - rescued,
    }


def plan_nothing() -> None:
    """Leaves rescues alone: what is planned after one asks for memory of its own."""
    import oomph

    if oomph.is_installed():
        from oomph import planner
        from oomph.steps import events

        planner.note_shortage = lambda device: None
        if planner.end_step in events.ending:
            events.ending.remove(planner.end_step)


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


def in_order(found: list[list[int]]) -> list[list[int]]:
    """The requests, with frees that follow each other sorted.

    Autocast frees its copies of weights in an order that depends on addresses of the
    host.
    """
    groups = itertools.groupby(found, len)
    return [
        request
        for length, group in groups
        for request in (sorted(group) if length == 1 else group)
    ]


def by_stream(found: list[list[int]]) -> list[list[list[int]]]:
    """The requests on each stream, their numbers counted from its first.

    For threads, of which any may be the first.
    """
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
    return sorted(streams.values())


def sizes_by_stream(found: list[list[int]]) -> list[list[int]]:
    """The sizes of what was allocated on each stream; when it was freed is left out."""
    return [[size for _, *rest in own for size in rest] for own in by_stream(found)]


def only_one_stream(found: list[list[int]]) -> bool:
    """Whether no free has to wait for another stream, which takes its time."""
    return len({stream for _, *rest in found if rest for stream in rest[1:]}) == 1


def main() -> None:
    """Records the script named on the command line."""
    result, script, *arguments = sys.argv[1:]
    torch.cuda.init()
    recorded = record(script, arguments)
    with open(f"{result}.{os.environ.get('RANK', 0)}", "w") as file:
        json.dump(recorded, file)


if __name__ == "__main__":
    main()
