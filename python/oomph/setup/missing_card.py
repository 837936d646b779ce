"""Why a process has no simulated card, though one is asked for."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

from oomph import simulate
from oomph.base import log

_reported = False


def report() -> None:
    """Says so once, if it is the case."""
    global _reported
    if _reported or not os.environ.get(simulate.VARIABLE) or simulate.card_in_use():
        return
    if multiprocessing.current_process().name != "MainProcess":
        return  # a worker, which may need none
    _reported = True
    log.logger.warning("the GPU is not simulated: %s", _why())


def _why() -> str:
    if not simulate.was_asked_at_start():
        return (
            f"{simulate.VARIABLE} was set after Python had started: set it before (in "
            "a notebook, restart the kernel), or call oomph.simulate.load(…) before "
            "PyTorch is imported"
        )
    pth = Path(simulate.__file__).parent.parent.parent / "oomph_simulate.pth"
    return (
        f"PyTorch was imported before Python read {pth}. Python reads such files when "
        "it starts, and only in its own folders of packages (not with -S, nor by "
        "PYTHONPATH): install oomph there. If it is there already, another .pth file "
        "or a sitecustomize.py imports PyTorch first: rename or remove that"
    )
