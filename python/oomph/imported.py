"""Modules of oomph's that are imported when they are used, asked for without that."""

from __future__ import annotations

import sys
from typing import Any


def imported(name: str) -> Any:
    """A module, if it has been imported; None also while a thread is still at it.

    Args:
        name: In full, such as ``oomph.planner``.

    Example:
        >>> planner = imported("oomph.planner")
        >>> if planner is not None:
        ...     planner.after_optimizer()
    """
    module = sys.modules.get(name)
    # As importlib itself tells a module that is not whole yet.
    is_partial = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_partial else module
