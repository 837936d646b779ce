"""A training on a card that is always short, and what its process holds meanwhile.

Run in a process of its own, on a simulated card, by test_endurance.py; prints JSON: one
sample a line. Every period of steps is as the period before: batches of all lengths, an
evaluation, several streams with and without ``record_stream``, streams of other
libraries, threads, exceptions, errors, graphs, pools and what else a long training
meets from time to time. So what two periods leave behind can be compared. A capture
that fails is not among it: PyTorch keeps its pool for ever.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import random
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import ClassVar

import oomph
import torch
import torch.nn.functional as F
from torch import nn

PERIOD = 500
WIDTH, LAYERS = 256, 6
MIB = 1 << 20
RECORDS = 1 << 16  # more than the planner keeps of a stream (layout.h)
LENGTHS = (4096, 6144, 8192)  # rows of a batch; one of WIDTH is 4, 6 or 8 MiB

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from remote import sim, sim_stats  # noqa: E402


class MallInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


libc = ctypes.CDLL(None)
libc.mallinfo2.restype = MallInfo


# ---- what a process holds


def entries() -> tuple[int, int]:
    """Python's objects that hold others, and how many they hold."""
    found = gc.get_objects()
    sizes = (dict, list, set, frozenset, deque)
    return len(found), sum(len(x) for x in found if isinstance(x, sizes))


def sample(step: int) -> dict[str, float]:
    """What the process holds, once all that could go is gone."""
    gc.collect()
    torch.cuda.synchronize()
    gc.collect()
    pages = Path("/proc/self/statm").read_text().split()
    maps = Path("/proc/self/maps").read_text().count("\n")
    info, stats, driver = libc.mallinfo2(), oomph.stats(0), sim_stats()
    objects, held = entries()
    return {
        "step": step,
        "seconds": round(time.process_time(), 1),
        "rss_bytes": int(pages[1]) * os.sysconf("SC_PAGESIZE"),
        "address_bytes": int(pages[0]) * os.sysconf("SC_PAGESIZE"),
        "malloc_bytes": info.uordblks + info.hblkhd,
        "maps": maps,
        "file_descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "objects": objects,
        "entries": held,
        "record_bytes": stats["record_bytes"],
        "handles": driver.handle_count,
        "mappings": driver.mapping_count,
        "reservations": driver.reservation_count,
        "pending": driver.pending_count,
        "pinned_bytes": driver.pinned_bytes,
        "events": created("cuEvent"),
        "streams": created("cuStream"),
        "misuses": driver.misuse_count,
        "allocated_bytes": torch.cuda.memory_allocated(),
        "host_bytes": stats["host_bytes"],
        "rescues": stats["rescues"],
        "sent_bytes": stats["sent_bytes"],
        "rung_error": stats["rung_error"],
    }


def created(kind: str) -> int:
    """How many of the driver's objects were created and not destroyed."""
    made = ("CreateWithPriority", "Create")
    return sum(sim.oomph_sim_call_count(f"{kind}{how}".encode()) for how in made) - (
        sim.oomph_sim_call_count(f"{kind}Destroy".encode())
    )


# ---- the training


class Net(nn.Module):
    """Layers, of which some work on streams of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.side = torch.cuda.Stream()
        self.forked = torch.cuda.Stream()
        self.thread = torch.cuda.Stream()  # for those who infer

    def forward(self, x: torch.Tensor, fails: bool = False) -> torch.Tensor:
        main = torch.cuda.current_stream()
        for layer in self.layers:
            x = torch.tanh(layer(x))
        if fails:
            raise ArithmeticError("the loss is not finite")
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):  # by record_stream
            first = torch.sin(x)
            x.record_stream(self.side)
        self.forked.wait_stream(main)
        with torch.cuda.stream(self.forked):  # by waiting for each other
            second = torch.cos(x)
        main.wait_stream(self.side)
        main.wait_stream(self.forked)
        first.record_stream(main)
        return first + second


def fill_records(net: Net) -> None:
    """Lets the planner's records of allocations grow to their full size at once."""
    for stream in (torch.cuda.current_stream(), net.side, net.forked, net.thread):
        with torch.cuda.stream(stream):
            for _ in range(RECORDS):
                torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")


def on_foreign_stream() -> None:
    """Another library's stream, which is gone afterwards."""
    handle = ctypes.c_void_p()
    assert sim.cuStreamCreate(ctypes.byref(handle), 1) == 0
    stream = torch.cuda.ExternalStream(handle.value)
    mine = torch.ones(2 * MIB, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        theirs = mine * 2
        mine.record_stream(stream)
    del mine, theirs
    stream.synchronize()
    assert sim.cuStreamDestroy_v2(handle) == 0


def in_graph() -> None:
    """A graph, replayed and dropped."""
    graph, x = torch.cuda.CUDAGraph(), torch.ones(MIB, device="cuda")
    with torch.cuda.graph(graph):
        y = torch.tanh(x) * 2
    for _ in range(3):
        graph.replay()
    del y


def in_pool() -> None:
    """A MemPool."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(MIB, device="cuda")
    del x, pool


def without_memory() -> None:
    """An error that the program catches."""
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(1 << 33, dtype=torch.uint8, device="cuda")


def in_thread(net: Net) -> None:
    """A thread that infers, copies from pinned memory, and ends."""

    def work() -> None:
        batch = torch.zeros(512, WIDTH).pin_memory()
        with torch.no_grad(), torch.cuda.stream(net.thread):
            net(batch.to("cuda", non_blocking=True)).sum().item()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_new_code() -> None:
    """Code that is compiled anew each time, as in a notebook."""
    text = "import torch\ndef take():\n    return torch.empty(1 << 21, device='cuda')\n"
    names: dict = {}
    exec(compile(text, "cell.py", "exec"), names)
    names["take"]()


def on_watch() -> None:
    """What monitors ask for."""
    torch.cuda.memory_snapshot()
    torch.cuda.memory_summary()
    torch.cuda.reset_peak_memory_stats()


def evaluate(net: Net) -> None:
    net.eval()
    with torch.no_grad():
        for rows in (4096, 1000, 8192):
            net(torch.zeros(rows, WIDTH, device="cuda")).mean().item()
    net.train()


def train(steps: int, period: int) -> None:
    """Trains; prints a sample at the end of each period, of 200 steps or more."""
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    fill_records(net)
    draw = random.Random(0)
    lengths = [draw.choice(LENGTHS) for _ in range(period // 2)]
    now_and_then = {  # every so many steps
        17: on_foreign_stream,
        31: lambda: in_thread(net),
        97: without_memory,
        101: in_new_code,
        113: in_graph,
        127: torch.cuda.empty_cache,
        149: in_pool,
        199: on_watch,
        period: lambda: evaluate(net),
    }
    for step in range(steps):
        # Lengths that stay for a while, then lengths that vary.
        of_period = step % period
        rows = lengths[of_period] if of_period < len(lengths) else LENGTHS[-1]
        x = torch.zeros(rows, WIDTH, device="cuda")
        if of_period % 50 == 25:
            with contextlib.suppress(ArithmeticError):
                net(x, fails=True)
        F.mse_loss(net(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()
        for often, act in now_and_then.items():
            if of_period % often == often - 1:
                act()
        if (step + 1) % period == 0:
            print(json.dumps(sample(step + 1)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--period", type=int, default=PERIOD, help="steps of a period")
    chosen = parser.parse_args()
    train(chosen.steps, chosen.period)
