"""What the error predicts of a step, and what the step takes with room.

For bodies that run on a simulated card (:class:`support.Simulated`).
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable

import pytest
import torch


def peak_bytes(function: Callable[[], None]) -> int:
    """What it takes with room."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    function()
    return torch.cuda.max_memory_allocated()


def text_within(size_bytes: float, function: Callable[[], None]) -> str | None:
    """The error's text on a card of so many bytes; None: there was none."""
    card_bytes = torch.cuda.get_device_properties(0).total_memory
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(size_bytes / card_bytes)
    try:
        function()
    except torch.OutOfMemoryError as error:
        return str(error)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return None


def step_bytes(text: str | None) -> int:
    """What the error says that a step would come to."""
    from oomph.base.sizes import parse_size

    assert text is not None
    found = re.search(r"A whole step needs about ([\d.]+ \w+)", text)
    assert found, text
    return parse_size(found[1].replace(" ", ""))


def predicted(
    function: Callable[[], None], fraction: float = 0.6, within: float = 0.01
) -> str:
    """The error's text on a card of a fraction of the true peak, which it predicts."""
    true = peak_bytes(function)
    text = text_within(fraction * true, function)
    assert step_bytes(text) == pytest.approx(true, rel=within), (true, text)
    return str(text)
