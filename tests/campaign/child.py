"""Runs one program in a process on a simulated card; the other end of ``hunt``."""

from __future__ import annotations

import gc
import sys
import traceback
from typing import Any

import remote
import torch

from campaign import autograd, graphs, memory, training
from campaign.machine import Machine, synchronize
from campaign.program import AMPLE, Program

MODULES = (autograd, graphs, memory, training)
LEAST_BYTES = 12 << 20  # of a limited device
AMPLE_BYTES = 64 << 20  # that an ample one has beyond its share
FORGOTTEN = 32  # steps after which what earlier programs needed is no guide
HASTE_S = 1e-6  # between switches of threads, in some programs
_standing: list[torch.cuda.CUDAGraph] = []  # of this process; empty: not prepared
_before: dict[str, list[int]] = {}  # what is in use before any program


def peaks() -> list[int]:
    """The most bytes in use on each device."""
    count = torch.cuda.device_count()
    return [torch.cuda.max_memory_allocated(device) for device in range(count)]


def limit(needs: list[int], room: tuple[float, float]) -> None:
    """Makes the devices as large as a program is to find them."""
    for device, (need, share) in enumerate(zip(needs, room, strict=True)):
        most = max(int(need * share), LEAST_BYTES)
        set_limit(device, most + AMPLE_BYTES if share >= AMPLE else most)


def set_limit(device: int, most: int | None = None) -> None:
    """Lets a device give so many bytes; None: all that it has."""
    total = torch.cuda.get_device_properties(device).total_memory
    fraction = 1.0 if most is None else min(most / total, 1.0)
    torch.cuda.set_per_process_memory_fraction(fraction, device)


def may_run_out(needs: list[int], conf: str) -> bool:
    """Whether OutOfMemoryError is right: the host would not hold all, either."""
    host = memory.ours().stats()["host_limit_bytes"]
    is_short = 2 * sum(needs) + AMPLE_BYTES // 2 > host
    return "offload:off" in conf or is_short


def rescues() -> int:
    """Blocks that fell back to the host so far."""
    oomph = memory.ours()
    count = torch.cuda.device_count()
    return sum(oomph.stats(device)["rescues"] for device in range(count))


def prepare(is_always: bool) -> None:
    """Once for each process, and for each program."""
    if not _standing:
        memory.have_peers()
        for device in range(torch.cuda.device_count()):
            _standing.append(graphs.standing(device))
            remote.kept_bytes[device] = torch.cuda.memory_allocated(device)
        gc.collect()
        _before.update(in_use())
        gc.freeze()  # what was imported is not looked at again, after each program
    if memory.ours() is not None:
        for _ in range(FORGOTTEN):
            memory.ours()._C.step()
    if is_always:
        from oomph import planner

        planner.start(always=True)


def run(
    text: str, needs: list[int] | None = None, conf: str | None = None
) -> dict[str, Any]:
    """Runs a program.

    Args:
        text: The program, as JSON.
        needs: Bytes that it needs natively on each device; None: it runs natively.
        conf: oomph's settings; None where it is not at work.

    Returns:
        What was seen (a number for each place of the program), the most bytes in use
        on each device, where memory ran out, how many blocks fell back to the host, and
        an error if there was one.
    """
    program = Program.from_json(text)
    prepare(conf is not None and "offload:always" in conf)
    if needs is not None:
        limit(needs, program.room)
    may_fail = needs is not None and may_run_out(needs, conf or "")
    rescued = 0 if needs is None else rescues()
    machine, failure = Machine(may_fail), None
    switch = sys.getswitchinterval()
    sys.setswitchinterval(switch if program.seed % 2 else HASTE_S)
    try:
        machine.run(list(program.ops))
        machine.end()
    except BaseException as error:
        below = traceback.format_exc()
        failure = f"{machine.place}: {type(error).__name__}: {error}\n{below}"
    found = {"failure": failure, "peaks": peaks(), "short": machine.shortages}
    try:
        synchronize()
        found["seen"] = machine.digests()
    except BaseException as error:
        found.setdefault("seen", {})
        found["failure"] = failure or f"at the end: {error}"
    found["rescues"] = 0 if needs is None else rescues() - rescued
    del machine
    sys.setswitchinterval(switch)
    for device in range(torch.cuda.device_count()):
        set_limit(device)
    return found


def left() -> dict[str, list[int]]:
    """What no program should leave, by device: to be asked after all was freed.

    Under oomph tensors still move, too.
    """
    oomph = memory.ours()
    if oomph is not None and memory.can_move(oomph):
        tensor = memory.numbers(2048, 1, "cuda")
        wanted = tensor.cpu()
        oomph.evict(tensor)
        assert torch.equal(tensor.cpu(), wanted)
        oomph.promote(tensor)
        assert torch.equal(tensor.cpu(), wanted)
        del tensor
    return {
        kind: [now - then for now, then in zip(found, _before[kind], strict=True)]
        for kind, found in in_use().items()
    }


def in_use() -> dict[str, list[int]]:
    """Bytes in use and reserved, by device."""
    torch.cuda.empty_cache()
    found: dict[str, list[int]] = {"active": [], "reserved": []}
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        found["active"].append(stats["active_bytes.all.current"])
        found["reserved"].append(stats["reserved_bytes.all.current"])
    return found
