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


def after_import(refuse: Callable[[str], None], main: Callable[[], None]) -> None:
    """Has one of two functions called at the end of ``import torch``.

    Args:
        refuse: With the reason, if PyTorch calls no plug-ins then.
        main: If it does; where it finds oomph it has called that already.
    """

    def look(_: object) -> None:
        reason = kept_out()
        if reason is not None:
            refuse(reason)
        else:
            main()

    imports.when_imported("torch", look)
