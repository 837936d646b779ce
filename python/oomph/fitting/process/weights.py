"""Weights on the CPU whose bytes nobody writes.

A script that makes its model on the CPU, or loads it there, spends most of its time on
values, and gigabytes of the host on them; yet what memory it takes of a GPU does not
depend on them. So what fills, changes or copies a large parameter of a module as a
whole is left out (csrc/sim/values/weights.hpp).

Whoever reads such a parameter on the CPU finds zeros. A script that fails then runs
again with all values (:func:`oomph.fitting.measuring.measure`).
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

_M_MMAP_THRESHOLD = -3  # of the C library: larger blocks get pages that nobody had
_LARGE_BYTES = 1 << 20


def leave_out() -> None:
    """From now on large parameters of modules on the CPU are not written."""
    from oomph import _values

    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    _values.leave_weights_out()
    register_module_parameter_registration_hook(_note_weight)


def unwritten_bytes() -> int:
    """How much was left out so far; 0: all values are there."""
    from oomph import _values

    return _values.unwritten_bytes()


def _note_weight(module: torch.nn.Module, name: str, parameter: Any) -> None:
    """What a module registers as its parameter is a weight."""
    from oomph import _values

    if type(parameter) is not torch.nn.Parameter:
        return  # its values may be elsewhere
    if parameter.device.type == "cpu" and parameter.layout is torch.strided:
        _values.note_weight(parameter.untyped_storage()._cdata)
