"""Runs the bodies of tests on a simulated card: the other end of support.Simulated.

After each body nothing may be left: no block in use, no record that disagrees, no
driver call that a correct program does not make.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import oomph
import torch


class SimStats(ctypes.Structure):
    """oomph_sim_stats_t of csrc/sim/sim.h."""

    _fields_: ClassVar = [
        (name, ctypes.c_uint64)
        for name in (
            *("capacity_bytes", "used_bytes", "peak_used_bytes", "context_bytes"),
            *("host_bytes", "peak_host_bytes", "pinned_bytes", "peak_pinned_bytes"),
            *("handle_count", "mapping_count", "reservation_count", "pending_count"),
            *("executed_count", "h2d_bytes", "d2h_bytes", "d2d_bytes"),
            *("misuse_count", "held_waits"),
        )
    ]


sim = ctypes.CDLL(str(Path(oomph.__file__).parent / "_sim" / "libcuda.so.1"))
sim.oomph_sim_misuse.restype = ctypes.c_char_p
sim.oomph_sim_now_ns.restype = ctypes.c_uint64
sim.oomph_sim_call_count.restype = ctypes.c_uint64
sim.oomph_sim_call_count.argtypes = [ctypes.c_char_p]
sim.oomph_sim_fail.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int]
sim.oomph_sim_hold.argtypes = [ctypes.c_void_p]
sim.oomph_sim_release.argtypes = [ctypes.c_void_p]
sim.oomph_sim_advance.argtypes = [ctypes.c_uint64]


kept_bytes: Counter[int] = Counter()  # by device: PyTorch gives them back to nobody


def sim_stats(device: int = 0) -> SimStats:
    """What the simulated driver counted."""
    stats = SimStats()
    assert sim.oomph_sim_stats(device, ctypes.byref(stats)) == 0
    return stats


def check_sound() -> None:
    """Nothing disagrees, and the driver saw no misuse."""
    misuse = sim.oomph_sim_misuse(0)
    assert misuse is None, f"misuse of the driver: {misuse.decode()}"
    if oomph.is_installed():
        for device in range(torch.cuda.device_count()):
            oomph._C.check(device)


def settle() -> None:
    """Frees what a test left behind, and checks that it left nothing."""
    planner = sys.modules.get("oomph.planner")
    if planner is not None:
        planner.stop()
        planner.resume()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    for device in range(torch.cuda.device_count()):
        kept = kept_bytes[device]
        left = torch.cuda.memory_allocated(device) - kept
        # Autograd's threads let go a moment later, of an error too, whose traceback
        # leads in a circle to what the test's frames hold.
        deadline = time.monotonic() + 60
        while left > 0 and time.monotonic() < deadline:
            time.sleep(0.01)
            gc.collect()
            left = torch.cuda.memory_allocated(device) - kept
        assert left == 0, f"{left} bytes are left in use on device {device}"
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.reset_accumulated_memory_stats(device)
    check_sound()
    gc.freeze()  # later collections leave alone what tests have imported


def explain(error: BaseException) -> str:
    """The traceback below this file, with the variables of the tests' own frames."""
    below = error.__traceback__.tb_next if error.__traceback__ else None
    failure = traceback.TracebackException(
        type(error), error, below, capture_locals=True
    )
    told: traceback.TracebackException | None = failure
    while told is not None:
        for frame in told.stack:
            ours = Path(__file__).parent in Path(frame.filename).parents
            values = frame.locals if ours and frame.locals else {}
            frame.locals = {k: " ".join(v.split())[:200] for k, v in values.items()}
        told = told.__cause__ or told.__context__
    return "".join(failure.format())


def perform(request: str) -> dict[str, Any]:
    """Runs one body; gives its result, or why it failed."""
    module, name, args, kwargs = json.loads(request)
    try:
        result = getattr(importlib.import_module(module), name)(*args, **kwargs)
        settle()
    except BaseException as error:
        return {"error": explain(error)}
    return {"result": result}


def main() -> None:
    """Serves requests, one a line, until there are no more."""
    faulthandler.enable()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print is no reply
    torch.cuda.init()
    for request in sys.stdin:
        replies.write(json.dumps(perform(request)) + "\n")
        replies.flush()


if __name__ == "__main__":
    # What a shell starts in the background ignores Ctrl-C, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules["remote"] = sys.modules["__main__"]  # as the tests import it
    sys.path += sys.argv[1:]
    main()
