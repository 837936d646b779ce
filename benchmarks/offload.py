"""Trains one of three models, in one of several ways, and tells what each step took.

    python -m oomph run --simulate 12GiB,gpu=rtx4090 benchmarks/offload.py gpt

Times are the device's, by events; on a simulated card with a clock they are computed.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from watch import IN, OUT, Blocks, Copies, idle

EXAMPLES = Path(__file__).parent.parent / "examples"


# ---- Models: each has `blocks`, which can be recomputed, and gives a loss


class Bottleneck(nn.Module):
    """A residual block of ResNet-50."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.convolve = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.convolve(x) + self.shortcut(x))


class Classifier(nn.Module):
    """Blocks one after another, then classes."""

    def __init__(self, first: nn.Module, blocks: list[nn.Module], head: nn.Module):
        super().__init__()
        self.first, self.blocks, self.head = first, nn.ModuleList(blocks), head

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), targets)


def resnet(classes: int = 1000) -> nn.Module:
    """ResNet-50."""
    first = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )
    blocks: list[nn.Module] = []
    channels = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(count):
            stride = 2 if i == 0 and width > 64 else 1
            blocks.append(Bottleneck(channels, width, stride))
            channels = 4 * width
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )
    return Classifier(first, blocks, head)


def mlp(width: int, layers: int, classes: int = 1000) -> nn.Module:
    """Parameters that weigh more than activations."""
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    return Classifier(nn.Identity(), list(blocks), nn.Linear(width, classes))


def gpt() -> nn.Module:
    """GPT-2 124 M."""
    example = runpy.run_path(str(EXAMPLES / "train_gpt.py"))
    chosen = sys.argv
    sys.argv = chosen[:1]
    try:
        arguments = example["parse_arguments"]()
    finally:
        sys.argv = chosen
    model: nn.Module = example["GPT"](arguments)
    return model


def batch_of(name: str, size: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "gpt":
        tokens = torch.zeros(size, 1025, dtype=torch.long, device="cuda")
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    shape = (3, 224, 224) if name == "cnn" else (width,)
    targets = torch.zeros(size, dtype=torch.long, device="cuda")
    return torch.zeros(size, *shape, device="cuda"), targets


# ---- Ways to train it


def recompute(model: nn.Module) -> None:
    """Checkpoints every block."""
    for block in model.blocks:  # type: ignore[union-attr]
        block.forward = _checkpointed(block.forward)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: checkpoint(forward, *inputs, use_reentrant=False)


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        yield


class Step:
    """One training step, and when its parts began."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        torch.manual_seed(0)
        makes = {"gpt": gpt, "cnn": resnet}
        make = makes.get(options.model, lambda: mlp(options.width, options.layers))
        with torch.device("cuda"):
            self.model = make()
        self.amp = torch.autocast("cuda", torch.bfloat16)
        if options.way == "checkpoint":
            recompute(self.model)
        self.saved = on_cpu if options.way == "save_on_cpu" else contextlib.nullcontext
        self.parts = 2 if options.way == "accumulate" else 1
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), fused=options.fused or None
        )

    def run(self) -> list[tuple[str, torch.cuda.Event]]:
        marks: list[tuple[str, torch.cuda.Event]] = []

        def mark(name: str) -> None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            marks.append((name, event))

        size = self.options.batch // self.parts
        for _ in range(self.parts):
            mark("forward")
            batch = batch_of(self.options.model, size, self.options.width)
            with self.amp, self.saved():
                loss = self.model(*batch) / self.parts
            mark("backward")
            loss.backward()
        mark("optimizer")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mark("end")
        return marks


def times(marks: list[tuple[str, torch.cuda.Event]]) -> dict[str, float]:
    """Milliseconds by part, and of the whole."""
    told = {"step_ms": marks[0][1].elapsed_time(marks[-1][1])}
    for (name, start), (_, end) in pairwise(marks):
        key = f"{name}_ms"
        told[key] = told.get(key, 0) + start.elapsed_time(end)
    return told


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("gpt", "cnn", "mlp"))
    parser.add_argument(
        "--way",
        default="plain",
        choices=("plain", "save_on_cpu", "checkpoint", "accumulate"),
    )
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--width", type=int, default=8192, help="of the MLP")
    parser.add_argument("--layers", type=int, default=4, help="of the MLP")
    parser.add_argument("--fused", action="store_true", help="the fused AdamW")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument(
        "--timeline", type=Path, help="file for what the last step did, and when"
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
    print(json.dumps({"peak_bytes": peak, "steps": steps}))


def link(copies: Copies, start: torch.cuda.Event) -> dict[str, Any]:
    """How the link was used in a step, each way, and what lay on the host."""
    seen = copies.since(start)
    ways = {way: asdict(idle(seen, (way,))) for way in (OUT, IN)}
    both = asdict(idle(seen))
    return {"most_host_bytes": copies.host_bytes, "both": both, **ways}


def counters() -> dict[str, float]:
    """What oomph and the simulated card have counted so far, where they are."""
    import os

    import oomph

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
