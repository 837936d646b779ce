"""Random states, so that a call that runs again draws the same.

PyTorch's own way is ``fork_rng()`` and ``set_rng_state()``. After these, recurrent
networks of cuDNN seed their dropout again, from the generator of the CPU: what a
program draws from then on, on both sides, would be other numbers. So a GPU's generator
is only moved to where it stood. It costs a call for each device, and a copy of the
CPU's 5 KB.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

from oomph import _torch


class Draws:
    """Where the generators of the CPU and of devices stand.

    Args:
        devices: The indices of these devices.
    """

    def __init__(self, devices: Iterable[int]) -> None:
        self._cpu = torch.get_rng_state()
        used = devices if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        self._devices = {device: _torch.draws(device) for device in used}

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Meanwhile they stand where they did; afterwards where they do now."""
        now = Draws(self._devices)
        self._set()
        try:
            yield
        finally:
            now._set()

    def _set(self) -> None:
        torch.set_rng_state(self._cpu)
        for device, stood in self._devices.items():
            _torch.draw_from(device, *stood)
