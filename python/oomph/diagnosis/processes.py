"""Other processes on a card, as NVIDIA's management library reports them."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_PROCESSES_MAX = 256


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


def _listed(device: int) -> dict[int, int] | None:
    import torch

    known: Any = torch.cuda.get_device_properties(device)
    bus = (
        f"{known.pci_domain_id:08x}:{known.pci_bus_id:02x}:{known.pci_device_id:02x}.0"
    )
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        ask = nvml.nvmlDeviceGetComputeRunningProcesses_v3
        handle = ctypes.c_void_p()
        found = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByPciBusId_v2(
            bus.encode(), ctypes.byref(handle)
        )
    except (OSError, AttributeError):
        return None
    count = ctypes.c_uint(_PROCESSES_MAX)
    processes = (_Process * _PROCESSES_MAX)()
    if found != 0 or ask(handle, ctypes.byref(count), processes) != 0:
        return None
    return {p.pid: p.used_bytes for p in processes[: count.value]}
