"""How a process comes to use CUDA: says as JSON what PyTorch's tests ask of new ones.

Each question is put to a fork of a process that has imported PyTorch and no more, since
PyTorch takes seconds to import.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

context = multiprocessing.get_context("fork")


def fork(body: Callable[..., Any], *args: Any) -> Any:
    """What it gives in a process of its own."""
    ours, theirs = context.Pipe()

    def work() -> None:
        try:
            theirs.send(body(*args))
        except Exception as error:
            theirs.send(f"{type(error).__name__}: {error}")

    process = context.Process(target=work)
    process.start()
    found = ours.recv()
    process.join()
    return found


def driver_status() -> int:
    """Of a call before cuInit: 3 as long as nobody has called that."""
    count = ctypes.c_int(-1)
    return ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))


def visible_later(devices: str) -> list[int]:
    """How many devices there are before and after the environment says which."""
    before = torch.cuda.device_count()
    os.environ["CUDA_VISIBLE_DEVICES"] = devices
    after = torch.cuda.device_count()
    if after > 0:
        torch.empty(10, device="cuda")
    return [before, after]


def invisible() -> int:
    os.environ["CUDA_VISIBLE_DEVICES"] = "32"
    return torch.cuda.device_count()


def one_of_ones() -> float:
    torch.randn(10).is_pinned()
    return torch.ones(10, device="cuda")[0].item()


def pinned_no_context() -> float:
    """Whether memory is pinned is asked before a fork uses CUDA."""
    torch.randn(10).is_pinned()
    return fork(one_of_ones)


def triton_imported() -> bool:
    torch.rand(2, device="cuda")
    return "triton" in sys.modules


def pinned_in_background() -> bool:
    torch._C._accelerator_setAllocatorSettings("pinned_use_background_threads:True")
    return torch.ones(1024 * 1024, pin_memory=True).is_pinned()


def init_race() -> dict[int, float]:
    values: dict[int, float] = {}

    def work(device: int) -> None:
        values[device] = torch.tensor([1.0]).cuda(device).item()

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return values


def is_bad() -> bool:
    torch.cuda.is_available()
    return torch.cuda._is_in_bad_fork()


def bad_fork(by_nvml: str, nvml: bool) -> bool:
    """Whether a fork may not use CUDA after it was asked whether there is any."""
    if by_nvml != "unset":
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = by_nvml
    if nvml:
        torch.cuda.is_available()
    else:
        with patch.object(torch.cuda, "_device_count_nvml", return_value=-1):
            torch.cuda.is_available()
    return fork(is_bad)


def contexts() -> dict[str, list[bool]]:
    """Which devices have a context after what."""

    def now() -> list[bool]:
        return [torch._C._cuda_hasPrimaryContext(device) for device in (0, 1)]

    found = {"begin": now()}
    x = torch.ones(1, device="cuda:1")
    found["made"] = now()
    assert str(x) == repr(x)
    found["str_repr"] = now()
    torch.ones(1).copy_(x)
    found["copy"] = now()
    assert not x.is_pinned()
    for make in (torch.zeros, torch.empty, torch.randn):
        assert make(3, pin_memory=True).is_pinned()
    y = torch.randn(3).pin_memory()
    assert y.is_pinned() and y.pin_memory().is_pinned()
    found["pin_memory"] = now()
    return found


def main() -> None:
    bodies = (
        *(driver_status, invisible, pinned_no_context, triton_imported),
        *(pinned_in_background, init_race, contexts),
    )
    found = {body.__name__: fork(body) for body in bodies}
    found["visible_later"] = fork(visible_later, "0")
    for by_nvml in ("1", "0", "unset"):
        for nvml in (True, False):
            found[f"bad_fork {by_nvml} {nvml}"] = fork(bad_fork, by_nvml, nvml)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
