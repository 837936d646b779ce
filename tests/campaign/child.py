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
from campaign.program import Program

MODULES = (autograd, graphs, memory, training)
LEAST_BYTES = 12 << 20  # of a limited device
HASTE_S = 1e-5  # between switches of threads, in some programs
_standing: list[torch.cuda.CUDAGraph] = []  # of this process; empty: not prepared
_before: dict[str, list[int]] = {}  # what is in use before any program


def peaks() -> list[int]:
    """The most bytes in use on each device."""
    count = torch.cuda.device_count()
    return [torch.cuda.max_memory_allocated(device) for device in range(count)]


def limit(bytes_of: list[int] | None) -> None:
    """Makes the devices smaller, or again what they are."""
    for device in range(torch.cuda.device_count()):
        total = torch.cuda.get_device_properties(device).total_memory
        most = max(bytes_of[device], LEAST_BYTES) if bytes_of else total
        torch.cuda.set_per_process_memory_fraction(min(most / total, 1.0), device)


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
    if is_always:
        from oomph import planner

        planner.start(always=True)


def run(text: str, limits: list[int] | None, conf: str | None) -> dict[str, Any]:
    """Runs a program.

    Args:
        text: The program, as JSON.
        limits: Bytes that each device has; None: all.
        conf: oomph's settings; None where it is not at work.

    Returns:
        What was seen (a number for each place of the program), the most bytes in use
        on each device, where memory ran out, and an error if there was one.
    """
    program = Program.from_json(text)
    prepare(conf is not None and "offload:always" in conf)
    limit(limits)
    may_fail = conf is not None and "offload:off" in conf
    machine, failure = Machine(may_fail), None
    switch = sys.getswitchinterval()
    sys.setswitchinterval(switch if program.seed % 8 else HASTE_S)
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
    del machine
    sys.setswitchinterval(switch)
    limit(None)
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
