"""What kernels of Triton take on a simulated card with the rates of a known one.

Nobody can see what such a kernel computes. But what ``torch.compile`` writes is bound
by memory as a rule: it moves each tensor that it is given once, those that it changes
twice, and of none more elements than it has work items. That is its time here. Kernels
that somebody wrote by hand are taken the same way, which is too little if they multiply
matrices.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from oomph.base import imports


class _Use(ctypes.Structure):
    """``oomph_sim_use_t``."""

    _fields_: ClassVar = [
        *(("addr", ctypes.c_uint64), ("bytes", ctypes.c_uint64)),
        *(("read_bytes", ctypes.c_uint64), ("written_bytes", ctypes.c_uint64)),
        *(("again_bytes", ctypes.c_uint64), ("reread_bytes", ctypes.c_uint64)),
    ]


class _Launched(ctypes.Structure):
    """``oomph_sim_launched_t``."""

    _fields_: ClassVar = [
        *(("kernel_count", ctypes.c_uint), ("threads", ctypes.c_uint64)),
        *(("block_threads", ctypes.c_uint), ("library_call_count", ctypes.c_uint)),
    ]


class _Cost(ctypes.Structure):
    """``oomph_sim_cost_t``."""

    _fields_: ClassVar = [
        *(("name", ctypes.c_char_p), ("flops", ctypes.c_double)),
        *(("precision", ctypes.c_int), ("accesses", ctypes.c_double)),
        *(("launched", _Launched), ("uses", ctypes.POINTER(_Use))),
        *(("use_count", ctypes.c_size_t), ("is_followed", ctypes.c_int)),
    ]


@dataclass(frozen=True)
class Given:
    """A tensor that a kernel is given."""

    tensor: torch.Tensor
    is_read: bool = True
    is_written: bool = False

    def use(self, items: float) -> _Use:
        """What is moved of it, if there is work for so many items."""
        tensor, size = self.tensor, self.tensor.element_size()
        moved = int(min(tensor.numel(), items)) * size
        strides = zip(tensor.shape, tensor.stride(), strict=True)
        span = 1 + sum((count - 1) * stride for count, stride in strides)
        read, written = moved * self.is_read, moved * self.is_written
        return _Use(tensor.data_ptr(), span * size, read, written, 0, 0)


class Costs:
    """Tells the simulated driver what kernels take.

    Args:
        driver: The simulated ``libcuda.so.1``.
    """

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._operator, self._cost = driver.oomph_sim_operator, driver.oomph_sim_cost
        self._operator.argtypes = [ctypes.c_int, _Launched]
        self._operator.restype = _Launched
        self._cost.argtypes = [ctypes.POINTER(_Cost), ctypes.c_void_p]

    @contextlib.contextmanager
    def of(self, given: Sequence[Given], items: float = math.inf) -> Iterator[None]:
        """Kernels that are launched meanwhile take the time for what they are given.

        Args:
            given: Tensors.
            items: Of the work that there is; no more elements of any are moved.
        """
        outer = self._operator(1, _Launched())
        try:
            yield
        finally:
            launched = self._operator(-1, outer)
        found = [each.use(items) for each in given if each.tensor.numel()]
        uses = (_Use * len(found))(*found)
        cost = _Cost(b"triton", 0.0, 0, 0.0, launched, uses, len(uses), 0)
        if not launched.kernel_count or not found:
            return
        if error := self._cost(cost, torch.cuda.current_stream().cuda_stream):
            raise RuntimeError(
                "a kernel of Triton failed on the simulated GPU: its stream takes no "
                f"more work (error {error})"
            )


def _is_on_card(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _given_by_inductor(kernel: Any, args: Sequence[Any]) -> tuple[list[Given], float]:
    """What a kernel of ``torch.compile`` is given, and for how many items.

    Inductor calls them ``in_ptr0``, ``out_ptr0``, ``in_out_ptr0`` and ``xnumel``.
    """
    pairs = [*zip(kernel.fn.arg_names, args, strict=False)]  # then come constants
    given = [
        Given(value, not name.startswith("out_ptr"), "out_ptr" in name)
        for name, value in pairs
        if _is_on_card(value)
    ]
    counts = [v for n, v in pairs if n.endswith("numel") and isinstance(v, int)]
    return given, math.prod(counts) if counts else math.inf


def install(driver: ctypes.CDLL) -> None:
    """Has their costs known from now on, as soon as Triton is imported.

    Args:
        driver: The simulated ``libcuda.so.1``.
    """
    costs = Costs(driver)

    def teach_inductor(module: Any) -> None:
        run = module.CachingAutotuner.run

        @functools.wraps(run)
        def timed(self: Any, *args: Any, **named: Any) -> Any:
            with costs.of(*_given_by_inductor(self, args)):
                return run(self, *args, **named)

        module.CachingAutotuner.run = timed

    def teach_triton(module: Any) -> None:
        run = module.JITFunction.run

        @functools.wraps(run)
        def timed(self: Any, *args: Any, warmup: bool, **named: Any) -> Any:
            if warmup:
                return run(self, *args, warmup=warmup, **named)
            values = filter(_is_on_card, (*args, *named.values()))
            with costs.of([*map(Given, values)]):
                return run(self, *args, warmup=warmup, **named)

        module.JITFunction.run = timed

    imports.when_imported("torch._inductor.runtime.triton_heuristics", teach_inductor)
    imports.when_imported("triton.runtime.jit", teach_triton)
