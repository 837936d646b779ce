"""oomph: a CUDA memory allocator for PyTorch that continues when memory is full.

Import it before the first use of CUDA and call :func:`install`, or run a script with
``oomph run``, or set ``OOMPH_CONF`` in the environment.

Importing the package imports nothing else: each name comes with its module on first
use. PYTEST_DONT_REWRITE: it may be imported before pytest, for the simulated GPU, which
pytest would warn of.
"""

from __future__ import annotations

import importlib

_archive = getattr(__spec__.loader, "archive", None)
if _archive is not None:
    raise ImportError(
        f"oomph lies in the archive {_archive}, from which Python loads no compiled "
        "modules: install it in a folder, or make an archive that is unpacked when it "
        "starts, as shiv does"
    )
TYPE_CHECKING = False  # as typing has it, which would be most of what is imported
if TYPE_CHECKING:
    from typing import Any

    from oomph import guard as guard
    from oomph import leaks as leaks
    from oomph import planner as planner
    from oomph import settings as settings
    from oomph import simulate as simulate
    from oomph.base.state import is_installed as is_installed
    from oomph.diagnosis.diagnose import explain as explain
    from oomph.diagnosis.diagnosis import Diagnosis as Diagnosis
    from oomph.diagnosis.oom_error import last_oom as last_oom
    from oomph.fitting.answers import Fit as Fit
    from oomph.fitting.function import fit as fit
    from oomph.fitting.runs import ScriptError as ScriptError
    from oomph.leaks import assert_no_leaks as assert_no_leaks
    from oomph.memory.no_offload import no_offload as no_offload
    from oomph.memory.residency import Moved as Moved
    from oomph.memory.residency import Residency as Residency
    from oomph.memory.residency import evict as evict
    from oomph.memory.residency import pin as pin
    from oomph.memory.residency import promote as promote
    from oomph.memory.residency import residency as residency
    from oomph.memory.residency import unpin as unpin
    from oomph.memory.stats import stats as stats
    from oomph.settings import SettingsError as SettingsError
    from oomph.setup.batch_finders import batch_finder as batch_finder
    from oomph.setup.installation import install as install
    from oomph.setup.plain import library_path as library_path
    from oomph.steps.events import step as step

__version__ = "0.1.0"

_MODULES = {"guard", "leaks", "planner", "settings", "simulate"}
_HOMES = {
    "base.state": ["is_installed"],
    "diagnosis.diagnose": ["explain"],
    "diagnosis.diagnosis": ["Diagnosis"],
    "diagnosis.oom_error": ["last_oom"],
    "fitting.answers": ["Fit"],
    "fitting.function": ["fit"],
    "fitting.runs": ["ScriptError"],
    "leaks": ["assert_no_leaks"],
    "memory.no_offload": ["no_offload"],
    "memory.residency": [
        *("Moved", "Residency", "evict", "pin", "promote", "residency", "unpin")
    ],
    "memory.stats": ["stats"],
    "settings": ["SettingsError"],
    "setup.batch_finders": ["batch_finder"],
    "setup.installation": ["install"],
    "setup.plain": ["library_path"],
    "steps.events": ["step"],
}
__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    """A public name, on its first use."""
    if name in _MODULES:
        return importlib.import_module(f"oomph.{name}")
    for home, names in _HOMES.items():
        if name in names:
            found = getattr(importlib.import_module(f"oomph.{home}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'oomph' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What there is, used or not."""
    return [*globals(), *__all__, *_MODULES]
