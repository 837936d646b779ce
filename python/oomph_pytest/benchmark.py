"""The fixture ``cuda_memory``: how much GPU memory a function takes."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, SupportsFloat, TypeVar

import pytest
import torch

from oomph_pytest.meter import Meter, Steps, prepare

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_FIXTURE = pytest.StashKey["CudaMemory | None"]()


def _settle() -> None:
    """Gives back what only waits to be freed, so that runs begin alike."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _figures(meter: Meter) -> dict[str, float]:
    """What a meter measured; peaks are those of the GPU with the highest."""
    devices = range(len(meter.base))

    def peak(device: int) -> int:
        return meter.above(device, "allocated_peak")

    worst = max(devices, key=peak)
    reserved_bytes = meter.above(worst, "reserved_peak")
    unused_bytes = max(0, reserved_bytes - peak(worst))
    return {
        "peak_bytes": peak(worst),
        "reserved_bytes": reserved_bytes,
        "fragmentation": unused_bytes / reserved_bytes if reserved_bytes > 0 else 0.0,
        "host_bytes": sum(meter.above(i, "host_peak") for i in devices),
        "rescues": sum(meter.above(i, "rescues") for i in devices),
        "left_bytes": sum(meter.above(i, "allocated") for i in devices),
    }


class CudaMemory:
    """Measures GPU memory in a test, and takes the test's metrics.

    Attributes:
        figures: What was measured so far; empty before. ``peak_bytes``: the most that
            was allocated above the start of the measurement; ``reserved_bytes``: the
            most that the allocator took for it; ``fragmentation``: the share of that
            which no tensor used, from 0 to 1; ``host_bytes`` and ``rescues``: bytes
            and blocks that oomph put on the host; ``left_bytes``: bytes still alive.
            If a test measures several times, each is the largest value.
        metrics: What was reported by :meth:`metric`.

    Example:
        >>> def test_a_step(cuda_memory):
        ...     cuda_memory(model, batch)
        ...     assert cuda_memory.figures["fragmentation"] < 0.1
    """

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self.metrics: dict[str, float] = {}
        self._steps: Steps | None = None

    @classmethod
    def of(cls, item: pytest.Item) -> CudaMemory:
        """That of a test, new for each run of it."""
        made = item.stash[_FIXTURE] = cls()
        return made

    def __call__(
        self,
        function: Callable[Parameters, Result],
        /,
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Calls a function and measures it.

        Args:
            function: What to call.
            *args: Its arguments.
            **kwargs: Its arguments by name.

        Returns:
            The function's result.

        Example:
            >>> output = cuda_memory(model, batch)
        """
        with self.measure():
            return function(*args, **kwargs)

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measures a ``with`` block; if it raises, nothing is kept.

        Returns:
            A context manager.

        Example:
            >>> with cuda_memory.measure():
            ...     train(steps=1)
            >>> cuda_memory.figures["peak_bytes"] > 0
            True
        """
        prepare()
        _settle()
        meter = Meter()
        try:
            yield
        finally:
            meter.stop()
        for name, value in _figures(meter).items():
            self.figures[name] = max(value, self.figures.get(name, value))

    def step(self) -> None:
        """Ends a step for ``stable_cuda_peak``, in a test without an optimizer.

        Example:
            >>> for batch in batches:
            ...     output = model(batch)
            ...     cuda_memory.step()
        """
        if self._steps is not None:
            self._steps.end()

    def metric(self, name: str, value: SupportsFloat) -> None:
        """Reports a result, such as a loss, for ``no_worse_metric`` and the run's file.

        Args:
            name: Name of the metric.
            value: A number, or what ``float()`` converts to one, such as a tensor.

        Raises:
            TypeError: The value is not a number.

        Example:
            >>> cuda_memory.metric("loss", 2.5)
            >>> cuda_memory.metrics
            {'loss': 2.5}
        """
        if isinstance(value, str | bytes):
            raise TypeError(f"metric {name!r}: {value!r} is not a number")
        self.metrics[name] = float(value)

    def forget(self) -> None:
        """Forgets what was measured and reported, as in a run that only warms up."""
        self.figures.clear()
        self.metrics.clear()

    def follow(self, steps: Steps | None) -> None:
        """What :meth:`step` reports to; None: nothing."""
        self._steps = steps

    def properties(self) -> list[tuple[str, object]]:
        """What stands in JUnit's file."""
        found = [(f"cuda_memory_{name}", value) for name, value in self.figures.items()]
        return [*found, *((f"metric_{n}", v) for n, v in self.metrics.items())]

    def as_json(self) -> dict[str, dict[str, float | str]]:
        """What stands in the run's file; JSON has no NaN."""
        metrics: dict[str, float | str] = {
            name: value if math.isfinite(value) else str(value)
            for name, value in self.metrics.items()
        }
        return {"figures": dict(self.figures), "metrics": metrics}


def fixture_of(item: pytest.Item) -> CudaMemory | None:
    """The fixture of a test, if it has it."""
    return item.stash.get(_FIXTURE, None)
