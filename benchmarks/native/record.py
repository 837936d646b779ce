"""Runs a training script and writes its allocations as a trace (see trace.h).

    python record.py TRACE script.py arguments…

The last step that an optimizer ended is the one to be replayed.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

marks: list[int] = []
trace = Path(sys.argv[1])


def count_events() -> int:
    snapshot = torch.cuda.memory._snapshot()
    return len(snapshot["device_traces"][0])


def write() -> None:
    """Writes the trace, addresses turned into numbers."""
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    alive: dict[int, int] = {}
    lines, made = [], 0
    for place, entry in enumerate(entries[: marks[-1]]):
        if place == marks[-2]:
            lines.append("w")
        if entry["action"] == "alloc":
            alive[entry["addr"]] = made
            lines.append(f"a {made} {entry['size']}")
            made += 1
        elif entry["action"] == "free_requested" and entry["addr"] in alive:
            lines.append(f"f {alive.pop(entry['addr'])}")
    trace.write_text("\n".join(lines) + "\n")


torch.cuda.memory._record_memory_history(
    enabled="all", context=None, max_entries=1_000_000
)
register_optimizer_step_post_hook(lambda *_: marks.append(count_events()))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
write()
