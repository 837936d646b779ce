"""Peaks of GPU memory above a baseline, within steps too; out-of-memory errors.

All figures are those of PyTorch's statistics, whose peaks can be reset by anyone: each
reset, ours and others', first lets every running meter note the peak so far.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from oomph.base import state
from oomph.base.sizes import format_size

from oomph_pytest import sites

_PEAKS = ("allocated", "reserved", "host")  # what has a peak
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
_running: list[Meter] = []
_is_prepared = False


def prepare() -> None:
    """Starts CUDA and what lives as long as the process, so that no test pays for it.

    cuBLAS and cuBLASLt have workspaces in PyTorch's memory: those of the thread of the
    test, and that of backward.
    """
    global _is_prepared
    if _is_prepared:
        return
    torch.cuda.init()  # type: ignore[no-untyped-call]
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)  # cuBLAS would have to be configured
    try:
        with torch.enable_grad():
            x, weight, bias = (
                torch.zeros(shape, device="cuda", requires_grad=True)
                for shape in ((16, 16), (16, 16), (16,))
            )
            torch.nn.functional.linear(x, weight, bias).sum().backward()  # type: ignore[no-untyped-call]
    finally:
        torch.use_deterministic_algorithms(is_deterministic)
    torch._C._cuda_attach_out_of_memory_observer(_note_oom)  # type: ignore[attr-defined]
    for name in _RESETS:
        setattr(torch._C, name, _noting(getattr(torch._C, name)))
    _is_prepared = True


def _read(device: int) -> dict[str, int]:
    """The figures of a device, by short names; peaks are since the last reset."""
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    found = {
        "allocated": stats["allocated_bytes"]["all"]["current"],
        "allocated_peak": stats["allocated_bytes"]["all"]["peak"],
        "reserved": stats["reserved_bytes"]["all"]["current"],
        "reserved_peak": stats["reserved_bytes"]["all"]["peak"],
        "ooms": stats["num_ooms"],
        **dict.fromkeys(("host", "host_peak", "rescues"), 0),
    }
    if state.is_installed():
        from oomph import _C

        own = _C.stats(device)
        found.update(
            host=own["host_bytes"],
            host_peak=own["host_bytes_peak"],
            rescues=own["rescues"],
        )
    return found


def _reset_peaks() -> None:
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)


def _noting(reset: Callable[..., Any]) -> Callable[..., Any]:
    """Has the meters note peaks before anyone resets them."""

    def call(*arguments: Any) -> Any:
        for meter in _running:
            meter.note()
        return reset(*arguments)

    return call


class Meter:
    """Measures from its making until :meth:`stop`, on every device.

    Args:
        on_peak: Called with a device when its peak is known to be a new one, before
            PyTorch's peaks are reset.

    Attributes:
        base: Figures of each device at its start.
        now: Figures of each device; their peaks are those since the start.
        oom_texts: What ran out of memory since, and where.
    """

    def __init__(self, on_peak: Callable[[int], None] | None = None) -> None:
        self._on_peak = on_peak
        _reset_peaks()
        self.base = [_read(device) for device in range(torch.cuda.device_count())]
        self.now = self.base
        self.oom_texts: list[str] = []
        _running.append(self)

    def note(self) -> None:
        """Takes the figures of now."""
        before, self.now = self.now, [_read(i) for i in range(len(self.base))]
        for device, (old, new) in enumerate(zip(before, self.now, strict=True)):
            if self._on_peak and new["allocated_peak"] > old["allocated_peak"]:
                self._on_peak(device)
            for name in _PEAKS:
                new[f"{name}_peak"] = max(new[f"{name}_peak"], old[f"{name}_peak"])

    def stop(self) -> None:
        """Ends the measuring."""
        self.note()
        _running.remove(self)

    def above(self, device: int, name: str) -> int:
        """A figure above the baseline; a peak above what was there at the start."""
        return self.now[device][name] - self.base[device][name.removesuffix("_peak")]


class Steps:
    """The peak of each step, above that of a test's start."""

    def __init__(self, test: Meter) -> None:
        self.test = test
        self.peaks: list[list[int]] = []
        self._meter = Meter()

    def end(self) -> None:
        """Ends a step; the next begins."""
        self._meter.stop()
        now, base = self._meter.now, self.test.base
        self.peaks.append(
            [now[i]["allocated_peak"] - base[i]["allocated"] for i in range(len(base))]
        )
        self._meter = Meter()

    def stop(self) -> None:
        """Ends the measuring; what follows the last step is none."""
        self._meter.stop()


# ---- Out of memory


def _note_oom(device: int, size_bytes: int, _total: int, _free: int) -> None:
    """Called by the allocator, before the error is raised; keeps no frame."""
    where = sites.innermost_frame(sys._getframe(1)) if _running else ""
    for meter in _running:
        meter.oom_texts.append(
            f"{where}: tried to allocate {format_size(size_bytes)} on GPU {device}"
        )
