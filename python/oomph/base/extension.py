"""The extension modules that are built for one version of PyTorch."""

from __future__ import annotations

import importlib
from types import ModuleType

_AGAIN = (
    "rebuild it: pip install --no-build-isolation --no-deps --force-reinstall oomph"
)


def load(name: str, what: str, version: str) -> ModuleType:
    """One of them, if it fits the PyTorch that runs.

    Args:
        name: Such as ``_torch``.
        what: What it holds, and the verb: ``oomph was``.
        version: PyTorch's.

    Raises:
        RuntimeError: It was not built, or for another version.
    """
    try:
        module = importlib.import_module(f"oomph.{name}")
    except ImportError as error:
        raise RuntimeError(
            f"{what} not built for PyTorch {version} ({error}); {_AGAIN}"
        ) from None
    running = ".".join(version.split(".")[:2])
    if module.built_for != running:
        raise RuntimeError(
            f"{what} built for PyTorch {module.built_for}, this is {running}; {_AGAIN}"
        )
    return module
