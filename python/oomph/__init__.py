"""oomph: a CUDA memory allocator for PyTorch that goes on where memory ends.

Import it before the first use of CUDA and call :func:`install`, or run a script with
``oomph run``, or set ``OOMPH_CONF`` in the environment.

Importing the package imports neither PyTorch nor a driver. PYTEST_DONT_REWRITE: it may
be imported before pytest, for the simulated GPU, which pytest would warn of.
"""

import importlib
from typing import Any

from oomph.installation import install
from oomph.plain import library_path
from oomph.region import no_offload
from oomph.residency import Moved, Residency, evict, pin, promote, residency, unpin
from oomph.settings import SettingsError
from oomph.state import is_installed
from oomph.stats import stats
from oomph.steps import step

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What needs PyTorch, or what only reports need, on its first use."""
    if name in ("guard", "leaks", "planner", "simulate"):
        return importlib.import_module(f"oomph.{name}")
    if name in ("Diagnosis", "explain"):
        return getattr(importlib.import_module("oomph.diagnose"), name)
    if name == "assert_no_leaks":
        return importlib.import_module("oomph.leaks").assert_no_leaks
    raise AttributeError(f"module 'oomph' has no attribute {name!r}")


__all__ = [
    "Diagnosis",
    "Moved",
    "Residency",
    "SettingsError",
    "assert_no_leaks",
    "evict",
    "explain",
    "install",
    "is_installed",
    "library_path",
    "no_offload",
    "pin",
    "promote",
    "residency",
    "stats",
    "step",
    "unpin",
]
