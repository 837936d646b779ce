"""Processes on a card, as NVIDIA's management library reports them."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_PROCESSES_MAX = 256
_FUNCTIONS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId_v2",
)


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def others(device: int) -> dict[int, int] | None:
    """Bytes that each other process holds on a device, by its id.

    Returns:
        None where that is not known: the library is missing or too old, or this process
        is not on its list, as in a container, whose processes have other ids outside.
    """
    listed = _listed(device)
    if listed is None or listed.pop(os.getpid(), None) is None:
        return None
    return listed


def on_all_gpus() -> list[dict[int, int]] | None:
    """Bytes that each process holds on each GPU of the machine, by its id.

    Starts neither CUDA nor PyTorch.

    Returns:
        One entry for each GPU, in the library's order; None: the library is missing or
        too old.
    """
    nvml = _library()
    count = ctypes.c_uint()
    if nvml is None or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return None
    found = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            return None
        listed = _of_device(nvml, handle)
        if listed is None:
            return None
        found.append(listed)
    return found


def _listed(device: int) -> dict[int, int] | None:
    import torch

    known: Any = torch.cuda.get_device_properties(device)
    bus = (
        f"{known.pci_domain_id:08x}:{known.pci_bus_id:02x}:{known.pci_device_id:02x}.0"
    )
    nvml = _library()
    handle = ctypes.c_void_p()
    if nvml is None or nvml.nvmlDeviceGetHandleByPciBusId_v2(
        bus.encode(), ctypes.byref(handle)
    ):
        return None
    return _of_device(nvml, handle)


def _library() -> Any:
    """NVIDIA's library, ready for use; None: it is missing or too old."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        started = nvml.nvmlInit_v2() == 0
        for name in _FUNCTIONS:
            getattr(nvml, name)
    except (OSError, AttributeError):
        return None
    return nvml if started else None


def _of_device(nvml: Any, handle: ctypes.c_void_p) -> dict[int, int] | None:
    count = ctypes.c_uint(_PROCESSES_MAX)
    processes = (_Process * _PROCESSES_MAX)()
    ask = nvml.nvmlDeviceGetComputeRunningProcesses_v3
    if ask(handle, ctypes.byref(count), processes) != 0:
        return None
    return {p.pid: p.used_bytes for p in processes[: count.value]}
