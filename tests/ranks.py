"""Runs a program as several ranks, each a process with a simulated card of its own."""

from __future__ import annotations

import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support import Result, run

# What each rank does first: `rank`, `size` and `device` are its own.
BEGIN = """
import os, sys, torch
import torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
dist.init_process_group(
    "nccl", init_method="file://" + sys.argv[1], rank=rank, world_size=size
)
"""
# PyTorch waits a minute before it ends a process whose group has failed.
QUICKLY = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "5",
}
END = """
dist.destroy_process_group()
"""


def run_ranks(
    count: int,
    code: str,
    card: str,
    conf: str | None = None,
    *,
    ends: bool = True,
    timeout: float = 120,
    **variables: str,
) -> list[Result]:
    """How each rank ended, in their order.

    Args:
        count: Of ranks.
        code: What they do once they have met, with the group made.
        card: The card; each rank has a device of the machine.
        conf: oomph's settings; None: PyTorch's own allocator.
        ends: Whether they part in the end, and must not fail.
        timeout: In seconds, of real time.
        **variables: More of the environment.
    """
    program = BEGIN + textwrap.dedent(code) + (END if ends else "")

    def one(rank: int) -> Result:
        told = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
        return run(
            program,
            place,
            card=f"{card},devices={count}",
            conf=conf,
            timeout=timeout,
            **told,
            **variables,
        )

    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(count) as pool,
    ):
        place = str(Path(folder) / "store")
        found = list(pool.map(one, range(count)))
    if ends:
        for rank, each in enumerate(found):
            assert each.code == 0, f"rank {rank}: {each.code}\n{each.said}"
    return found
