"""How long copies, operators and a training step take.

    python clock.py [CARD]

On the GPU of this machine or, with CARD, on a simulated one. Times are the best of
several, by CUDA events, so those of the simulated card are what its rates predict. The
batch of the step, GPT-2 124M with bf16 autocast and the fused AdamW, is what fits the
card, up to 16. Prints one JSON object a line: first the card, then each time.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import oomph.simulate

if len(sys.argv) > 1:
    oomph.simulate.load(sys.argv[1])

import torch
from host_pages import best_ms, measure_link, tell

GPT = Path(__file__).parents[2] / "examples" / "train_gpt.py"
GIB = 1 << 30
BATCH_MAX = 16
SIDE = 8192


def measure_operators() -> None:
    """Some that arithmetic limits, and some that memory does."""
    for dtype in (torch.float32, torch.bfloat16):
        a, b, out = (
            torch.zeros(SIDE, SIDE, dtype=dtype, device="cuda") for _ in range(3)
        )
        name = str(dtype).removeprefix("torch.")
        operators: dict[str, Callable[[], object]] = {
            "mm": lambda a=a, b=b, out=out: torch.mm(a, b, out=out),
            "add": lambda a=a, b=b, out=out: torch.add(a, b, out=out),
            "softmax": lambda a=a, out=out: torch.softmax(a, 1, out=out),
            "sum": lambda a=a: a.sum(),
        }
        for operator, work in operators.items():
            tell(measure="operator", what=f"{operator}, {name}", ms=best_ms(work))


def measure_step() -> None:
    """A whole step: forward, backward, optimizer."""
    example = runpy.run_path(str(GPT))
    memory_gib = torch.cuda.get_device_properties(0).total_memory / GIB
    batch = int(max(1, min(BATCH_MAX, (memory_gib - 3) / 2)))  # 0.8 to 1.5 GiB each
    before, sys.argv = sys.argv, [str(GPT), "--amp", "--batch", str(batch)]
    arguments: argparse.Namespace = example["parse_arguments"]()
    sys.argv = before
    model = example["GPT"](arguments).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.zeros(batch, arguments.block, dtype=torch.long, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    tell(measure="step", what=f"GPT-2 124M, batch {batch}", ms=best_ms(step))


def main() -> None:
    card = torch.cuda.get_device_properties(0)
    tell(measure="card", device=card.name, memory_bytes=card.total_memory)
    measure_link()
    measure_operators()
    torch.cuda.empty_cache()
    measure_step()


if __name__ == "__main__":
    main()
