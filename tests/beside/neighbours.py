"""Where the packages are that stand beside oomph in a test, or why it is skipped."""

from __future__ import annotations

import importlib.util
from importlib import metadata

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skips a test where a package is missing, and says how to install it.

    Args:
        packages: Names as pip has them.
    """
    missing = [name for name in packages if not _is_installed(name)]
    return pytest.mark.skipif(
        bool(missing),
        reason=f"not installed: pip install --no-deps {' '.join(missing)}",
    )


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def folder_of(module: str) -> str:
    """The folder of a module, which is not imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return spec.origin.rpartition("/")[0]
