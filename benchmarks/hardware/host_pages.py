"""How fast kernels work on host memory of one kind, and whether they compute the same.

    python host_pages.py numa|host|pinned

A block that no device memory is left for falls back to the host. Each operator runs on
such blocks, then on blocks of the device, and the results are compared. Times are the
best of several, by CUDA events; ``gb_per_s`` counts the bytes of operands that cross
the link when they lie on the host. What the link gives is measured by copies from and
to pinned memory, in one direction and in both at once. Prints one JSON object a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

import oomph
import oomph.simulate
import torch

MIB = 1 << 20
BLOCK_BYTES = 256 * MIB
LIMIT_BYTES = 3072 * MIB
SMALL_BYTES = 64 * MIB  # left on the device for what is small
ROUNDS = 5
ROWS, ROW = 1 << 18, 256  # a block as a table of float32
SIDE = 4096  # of the matrices


@dataclass
class Blocks:
    """What operators work on; all but ``near`` and ``rows`` lie on either side."""

    a: torch.Tensor  # [ROWS, ROW], float32
    b: torch.Tensor
    c: torch.Tensor
    near: torch.Tensor  # the same, always on the device
    rows: torch.Tensor  # [ROWS], int64, on the device


def read(x: Blocks) -> torch.Tensor:
    """sum"""
    return x.a.sum()


def write(x: Blocks) -> torch.Tensor:
    """fill_"""
    return x.c.fill_(3.0)


def copy_in(x: Blocks) -> torch.Tensor:
    """copy_ to the device"""
    return x.near.copy_(x.a)


def copy_out(x: Blocks) -> torch.Tensor:
    """copy_ from the device"""
    return x.c.copy_(x.near)


def add(x: Blocks) -> torch.Tensor:
    """add with out="""
    return torch.add(x.a, x.b, out=x.c)


def scale(x: Blocks) -> torch.Tensor:
    """mul_"""
    return x.c.copy_(x.near).mul_(0.5)


def select(x: Blocks) -> torch.Tensor:
    """index_select of rows of 1 KiB"""
    return torch.index_select(x.a, 0, x.rows, out=x.near)


def count(x: Blocks) -> torch.Tensor:
    """index_add_ of integers: atomic additions"""
    return x.c.view(torch.int32).zero_().index_add_(0, x.rows, x.near.view(torch.int32))


def multiply(x: Blocks) -> torch.Tensor:
    """mm of 4096 x 4096 in bfloat16"""
    a, b, c = (
        t.view(torch.bfloat16).view(-1)[: SIDE * SIDE].view(SIDE, SIDE)
        for t in (x.a, x.b, x.c)
    )
    return torch.mm(a, b, out=c)


@dataclass(frozen=True)
class Operator:
    """What is run, and how much crosses the link if the blocks lie on the host."""

    run: Callable[[Blocks], torch.Tensor]
    crossing_bytes: int


OPERATORS = [
    Operator(read, BLOCK_BYTES),
    Operator(write, BLOCK_BYTES),
    Operator(copy_in, BLOCK_BYTES),
    Operator(copy_out, BLOCK_BYTES),
    Operator(add, 3 * BLOCK_BYTES),
    Operator(scale, 3 * BLOCK_BYTES),
    Operator(select, BLOCK_BYTES),
    Operator(count, 3 * BLOCK_BYTES),
    Operator(multiply, 3 * SIDE * SIDE * 2),
]


def best_ms(run: Callable[[], object]) -> float:
    """The shortest of several runs, after one that warms up."""
    run()
    found = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return min(found)


def tell(**values: object) -> None:
    """Prints one result."""
    print(json.dumps(values), flush=True)


def speed(crossing_bytes: int, ms: float) -> float:
    return round(crossing_bytes / ms / 1e6, 2) if ms > 0 else 0.0


def measure_link() -> None:
    """Copies between pinned memory and the device, as fast as the link allows."""
    host = [torch.empty(BLOCK_BYTES, dtype=torch.uint8).pin_memory() for _ in range(2)]
    near = [
        torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2)
    ]
    side = torch.cuda.Stream()

    def both() -> None:
        side.wait_stream(torch.cuda.current_stream())
        near[0].copy_(host[0], non_blocking=True)
        with torch.cuda.stream(side):
            host[1].copy_(near[1], non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)

    ways: list[tuple[str, Callable[[], object], int]] = [
        ("in", lambda: near[0].copy_(host[0], non_blocking=True), BLOCK_BYTES),
        ("out", lambda: host[0].copy_(near[0], non_blocking=True), BLOCK_BYTES),
        ("in and out at once", both, 2 * BLOCK_BYTES),
    ]
    for way, run, crossing_bytes in ways:
        ms = best_ms(run)
        tell(measure="link", way=way, ms=ms, gb_per_s=speed(crossing_bytes, ms))


def make_blocks(near: torch.Tensor, rows: torch.Tensor) -> Blocks:
    """Blocks wherever memory is left now."""
    a, b, c = (torch.empty_like(near) for _ in range(3))
    a.copy_(near)
    b.copy_(near).mul_(2.0)
    return Blocks(a, b, c, near, rows)


def host_bytes() -> int:
    return int(oomph.stats()["host_bytes"])


def measure(operator: Operator, device: Blocks, host: Blocks, simulated: bool) -> None:
    """One operator on both sides."""
    ms_on_device = best_ms(lambda: operator.run(device))
    expected = operator.run(device).clone()
    ms_on_host = best_ms(lambda: operator.run(host))
    found = operator.run(host)
    tell(
        measure="operator",
        operator=operator.run.__doc__,
        ms_on_device=ms_on_device,
        ms_on_host=ms_on_host,
        gb_per_s=speed(operator.crossing_bytes, ms_on_host),
        equal="not computed" if simulated else torch.equal(expected, found),
    )


def main() -> None:
    kind = sys.argv[1]
    simulated = oomph.simulate.card_in_use() is not None
    oomph.install(host_pages=kind, device_limit=LIMIT_BYTES, reserve=0)
    torch.manual_seed(1)
    near = torch.randn(ROWS, ROW, device="cuda")
    rows = torch.randint(ROWS, (ROWS,), device="cuda")
    measure_link()
    torch.cuda.empty_cache()
    device = make_blocks(near, rows)
    before = host_bytes()
    left = LIMIT_BYTES - torch.cuda.memory_reserved() - SMALL_BYTES
    filler = torch.empty(left, dtype=torch.uint8, device="cuda")
    host = make_blocks(near, rows)
    tell(
        measure="kind",
        kind=kind,
        in_use=oomph.stats()["host_kind"],
        host_fallback_bytes=host_bytes() - before,
        device=torch.cuda.get_device_name(),
    )
    for operator in OPERATORS:
        measure(operator, device, host, simulated)
    del filler


if __name__ == "__main__":
    main()
