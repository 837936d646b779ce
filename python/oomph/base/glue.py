"""Chooses the extension modules that are built for the PyTorch that runs.

oomph brings some for each minor version from 2.10 on, in ``_glue``; for another one
they are built once, where there is a compiler (:mod:`oomph.base.building`).
``oomph._torch`` and ``oomph._values`` are these modules; :mod:`oomph._extensions` loads
them.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).parent.parent
_GLUE = _PACKAGE / "_glue"
_SHIPPED = _GLUE / "csrc"
SOURCE = _SHIPPED if _SHIPPED.exists() else _PACKAGE.parents[1] / "csrc"  # a checkout's
_NIGHTLY = re.compile(r"\d(a|b|rc|\.dev)\d")  # as no release is, and each another


def versions() -> list[str]:
    """The minor versions of PyTorch that this oomph brings modules for, in order."""
    found = [path.name.removeprefix("torch") for path in _GLUE.glob("torch*_*")]
    numbers = sorted(tuple(map(int, name.split("_"))) for name in found)
    return [f"{major}.{minor}" for major, minor in numbers]


def _brought(version: str) -> Path | None:
    """The folder of the modules for a PyTorch, if this oomph brings them."""
    from oomph.base import building

    folder = _GLUE / building.folder_name(version)
    is_brought = building.is_whole(folder) and not _NIGHTLY.search(version)
    return folder if is_brought else None


def fit_of(version: str) -> str:
    """Whether there are modules for a PyTorch, in words."""
    from oomph.base import building

    if _brought(version) is not None:
        return "this oomph is built for it"
    try:
        is_built = building.is_whole(building.cached(version, SOURCE))
    except building.BuildError as error:
        return f"oomph has to be built for it, which is not possible: {error}"
    if is_built:
        return "oomph was built for it here"
    return "oomph has to be built for it, which is tried when it is first used"


def _find(version: str, torch: Path) -> Path:
    """The folder of the modules for a PyTorch, built now if need be.

    Raises:
        ImportError: There is none, and none can be built.
    """
    from oomph.base import building

    brought = _brought(version)
    if brought is not None:
        return brought
    try:
        return building.build(version, torch, SOURCE)
    except building.BuildError as error:
        releases = ", ".join(versions()) or "none, as it was built without one"
        raise ImportError(
            f"this oomph is for these releases of PyTorch: {releases}; and it cannot "
            f"be built for another one here: {error}"
        ) from None


def open_module(name: str) -> ModuleType:
    """Loads one of the modules for the PyTorch that runs; for ``oomph/_torch.py``.

    Raises:
        ImportError: There is none, or it does not fit.
    """
    import torch

    folder = _find(torch.__version__, Path(torch.__file__).parent)
    path = str(folder / f"{name}.abi3.so")
    spec = importlib.util.spec_from_file_location(f"oomph.{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
