"""Trains one of several models, in one of several ways, and tells what each step took.

    python -m oomph run --simulate 12GiB,gpu=rtx4090 benchmarks/offload.py gpt

Times are the device's, by events; on a simulated card with a clock they are computed.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import oomph
import torch
from models import MODELS
from recorded import Record, Recorder
from torch import nn
from torch.utils.checkpoint import checkpoint
from watch import IN, OUT, Blocks, Copies, idle

WAYS = ("plain", "save_on_cpu", "checkpoint", "checkpoint2", "evict", "accumulate")


# ---- Ways to train it


def recompute(blocks: Iterable[nn.Module]) -> None:
    """Checkpoints each of these."""
    for block in blocks:
        block.forward = _checkpointed(block.forward)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    return functools.partial(checkpoint, forward, use_reentrant=False)


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        yield


class Step:
    """One training step, and when its parts began."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.chosen = MODELS[options.model]
        torch.manual_seed(0)
        with torch.device("cuda"):
            self.model = self.chosen.make().train()
        self.amp = torch.autocast("cuda", torch.bfloat16)
        self.way = options.way
        every = {"checkpoint": 1, "checkpoint2": 2}.get(self.way)
        if every is not None:
            recompute(list(self.model.blocks)[::every])
        self.saved = on_cpu if self.way == "save_on_cpu" else contextlib.nullcontext
        self.parts = 2 if self.way == "accumulate" else 1
        self.size = (options.batch or self.chosen.batch_size) // self.parts
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, fused=options.fused or None)

    def run(self) -> list[tuple[str, torch.cuda.Event]]:
        marks: list[tuple[str, torch.cuda.Event]] = []

        def mark(name: str) -> None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            marks.append((name, event))

        for _ in range(self.parts):
            mark("forward")
            batch = self.chosen.batch(self.size)
            with self.amp, self.saved():
                loss = self.model(*batch) / self.parts
            mark("backward")
            loss.backward()
        mark("optimizer")
        with self.state_on_device():
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mark("end")
        return marks

    @contextlib.contextmanager
    def state_on_device(self) -> Iterator[None]:
        """Where the optimizer's state lies on the host otherwise, brings it here."""
        if self.way == "evict":
            oomph.promote(self.state())
        yield
        if self.way == "evict":
            oomph.evict(self.state())

    def state(self) -> list[torch.Tensor]:
        """The optimizer's state on the device."""
        values = [v for kept in self.optimizer.state.values() for v in kept.values()]
        return [v for v in values if v.is_cuda]


def times(marks: list[tuple[str, torch.cuda.Event]]) -> dict[str, float]:
    """Milliseconds by part, and of the whole."""
    told = {"step_ms": marks[0][1].elapsed_time(marks[-1][1])}
    for (name, start), (_, end) in pairwise(marks):
        key = f"{name}_ms"
        told[key] = told.get(key, 0) + start.elapsed_time(end)
    return told


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--way", default="plain", choices=WAYS)
    parser.add_argument("--batch", type=int, help="size of a batch")
    parser.add_argument("--fused", action="store_true", help="the fused AdamW")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument(
        "--timeline", type=Path, help="file for what the last step did, and when"
    )
    parser.add_argument(
        "--record", type=Path, help="file for the operators of one more step"
    )
    return parser.parse_args()


def main() -> None:
    options = parse()
    step, copies = Step(options), Copies()
    blocks = Blocks(step.model.blocks) if options.timeline else None
    steps = []
    for _ in range(options.steps):
        before = counters()
        with copies.watch():
            marks = step.run()
        torch.cuda.synchronize()
        after = counters()
        used = {key: after[key] - before[key] for key in after}
        start = marks[0][1]
        steps.append({**times(marks), **used, **planned(), **link(copies, start)})
        passed = blocks.since(start) if blocks else []
    if options.timeline:
        ends = [(name, start.elapsed_time(mark)) for name, mark in marks]
        seen = [asdict(copy) for copy in copies.since(start)]
        told = {"marks": sorted([*ends, *passed], key=lambda m: m[1]), "copies": seen}
        options.timeline.write_text(json.dumps(told))
    peak = torch.cuda.max_memory_allocated()
    if options.record:
        record(step).write(options.record)
    print(json.dumps({"peak_bytes": peak, "steps": steps}))


def record(step: Step) -> Record:
    """Runs one more step, and tells what it did."""
    with Recorder(step.model.blocks) as recorder:
        marks = step.run()
    torch.cuda.synchronize()
    return recorder.record(dict(marks), step.model)


def link(copies: Copies, start: torch.cuda.Event) -> dict[str, Any]:
    """How the link was used in a step, each way, and what lay on the host."""
    seen = copies.since(start)
    ways = {way: asdict(idle(seen, (way,))) for way in (OUT, IN)}
    both = asdict(idle(seen))
    return {"most_host_bytes": copies.host_bytes, "both": both, **ways}


def counters() -> dict[str, float]:
    """What oomph and the simulated card have counted so far, where they are."""
    told: dict[str, float] = {}
    if oomph.is_installed():
        now = oomph.stats()
        keys = ("rescues", "host_predicted_bytes", "host_used_bytes", "waited_ms")
        told = {key: now[key] for key in keys}
    if "OOMPH_SIMULATE" in os.environ:
        from oomph import simulate

        used = vars(simulate.usage())
        told |= {key: used[key] for key in used if "busy" in key or "2" in key}
    return told


def planned() -> dict[str, Any]:
    planner = sys.modules.get("oomph.planner")
    if planner is None:
        return {}
    found = planner.explain().get(0, {})
    keys = ("missing_bytes", "offloaded_bytes", "unreached_bytes", "step_sent_bytes")
    return {key: found[key] for key in keys if key in found}


if __name__ == "__main__":
    main()
