"""Which GPU the tests have: a real one, a simulated one, or none, and why."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest
from oomph import settings, simulate
from oomph.base import state
from oomph.base.sizes import format_size
from oomph.setup import environment, installation

_NO_GPU = "no GPU: {}; --simulate-gpu 12GiB simulates one"
_asked_settings = ""  # --oomph


def prepare(card: str, conf: str) -> None:
    """Simulates a card, and has oomph installed, when PyTorch is imported.

    Args:
        card: As for ``oomph run --simulate``; empty: none.
        conf: Settings as in ``OOMPH_CONF``; empty: as the environment says.

    Raises:
        pytest.UsageError: One of them is not understood, or comes too late.
    """
    try:
        if card:
            _simulate(card)
        if conf:
            _install(conf)
    except (simulate.SimulationError, settings.SettingsError, RuntimeError) as error:
        wanted = f"--simulate-gpu {card}" if card else f"--oomph {conf}"
        raise pytest.UsageError(f"{wanted}: {error}") from None


def _simulate(card: str) -> None:
    if "torch" in sys.modules and simulate.card_in_use() is None:
        raise simulate.SimulationError(
            "PyTorch is imported already, by another plugin or by what started pytest, "
            "and has looked for a GPU; set the variable instead, which works in any "
            f"case: {simulate.VARIABLE}={card} pytest ..."
        )
    simulate.load(card)
    environment.mark_as_said(card)  # the header says it


def _install(conf: str) -> None:
    global _asked_settings
    settings.parse(conf)
    _asked_settings = conf
    os.environ[settings.VARIABLE] = conf  # for the import of PyTorch, and for children
    if "torch" in sys.modules:
        installation.install(conf)


def header() -> str | None:
    """What stands in the header of pytest's output."""
    card = os.environ.get(simulate.VARIABLE) if simulate.card_in_use() else None
    parts = [simulate.banner(card)] if card else []
    if _asked_settings:
        parts.append(f"oomph allocates ({_asked_settings})")
    return "; ".join(parts) or None


def why_absent() -> str | None:
    """Why there is no GPU, for a skip; None if there is one. Imports PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return _NO_GPU.format("PyTorch is not installed")
    import torch

    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        why = f"PyTorch {torch.__version__} is built for the CPU alone"
        return f"no GPU: {why}"
    return _NO_GPU.format("PyTorch finds none")


def check_allocator() -> None:
    """Fails the test if oomph was asked for and PyTorch's own allocator is in use."""
    if _asked_settings and not state.is_installed():
        pytest.fail(
            f"--oomph {_asked_settings}: oomph could not be installed, the log says "
            "why; PyTorch's own allocator is in use",
            pytrace=False,
        )


def computes() -> bool:
    """Whether values mean something: not on a simulated GPU of shapes alone."""
    card = simulate.card_in_use()
    return card is None or card.has_values


def describe() -> dict[str, str]:
    """What figures depend on: versions, GPU and allocator."""
    import torch
    from oomph import __version__

    name = torch.cuda.get_device_name(0)
    is_plain = simulate.card_in_use() is None or "simulated" in name
    simulated = "" if is_plain else " (simulated)"
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    return {
        "oomph": __version__,
        "torch": str(torch.__version__),
        "gpu": f"{name}{simulated}, {format_size(total_bytes)}",
        "allocator": "oomph" if state.is_installed() else "native",
    }
