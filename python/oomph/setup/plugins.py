"""Whether PyTorch calls its plug-ins, of which oomph is one."""

from __future__ import annotations

import os
from collections.abc import Callable

from oomph.base import imports

_SWITCH = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # PyTorch's: it calls plug-ins if it is 1


def kept_out() -> str | None:
    """Why PyTorch does not call oomph, and what to do; ``None`` if it does."""
    switch = os.environ.get(_SWITCH, "1")
    if switch == "1":
        return None
    return f"{_SWITCH}={switch} keeps PyTorch from calling oomph: unset it"


def when_kept_out(refuse: Callable[[str], None]) -> None:
    """Calls a function with the reason at ``import torch``, if there is one then."""

    def look(_: object) -> None:
        reason = kept_out()
        if reason is not None:
            refuse(reason)

    imports.when_imported("torch", look)
