"""Loads the extension modules for the PyTorch that runs, if they fit."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).parent
_WHAT = {
    "_torch": "oomph was",
    "_values": "the operators of the simulated GPU were",
}


def _check_not_older(module: ModuleType, is_older: bool) -> None:
    """Refuses a file of an installation before this one: Python finds it first."""
    if is_older:
        raise RuntimeError(
            f"an older oomph was left behind where this one lies: {module.__file__}; "
            "remove that file, or that folder, and install oomph again"
        )


def load(name: str, version: str) -> ModuleType:
    """One of the modules, if it fits the PyTorch that runs.

    Args:
        name: ``_torch`` or ``_values``.
        version: PyTorch's.

    Raises:
        RuntimeError: There is none for it.
    """
    from oomph import _C

    what = _WHAT[name]
    try:
        module = importlib.import_module(
            "oomph._torch" if name == "_torch" else "oomph._values"
        )
    except ImportError as error:
        raise RuntimeError(f"{what} not built for PyTorch {version}: {error}") from None
    _check_not_older(module, is_older=Path(str(module.__file__)).parent == _PACKAGE)
    _check_not_older(_C, is_older=not str(_C.__file__).endswith(".abi3.so"))
    if module.built_for != ".".join(version.split(".")[:2]):
        raise RuntimeError(
            f"{what} built for PyTorch {module.built_for}, and this is {version}: "
            "install oomph again"
        )
    return module
