"""What Python and PyTorch call by themselves where oomph is installed.

A package of its own, as the name ``oomph`` may mean something else in a program: its
own script of that name, or oomph's source, which is not built. Neither Python's start
nor ``import torch`` may break of that.

PYTEST_DONT_REWRITE: it may be imported before pytest, which would warn of it.
"""

from __future__ import annotations

import os
import re
import sys


def main() -> None:
    """PyTorch's plug-in entry point, called at the end of ``import torch``.

    It does nothing unless the environment asks for something.

    Raises:
        Exception: Whatever stands in the way, if ``OOMPH_CONF`` says ``required:yes``.
    """
    if not any(name.startswith("OOMPH_") for name in os.environ):
        return
    try:
        from oomph import _C  # noqa: F401 - what is built
        from oomph.setup import autoload
    except ImportError as error:
        text = f"oomph is not in use: {_explained(error)}"
        if re.search(r"\brequired\s*:\s*yes\b", os.environ.get("OOMPH_CONF", "")):
            raise ImportError(text) from error
        print(text, file=sys.stderr)
        return
    autoload.main()


def simulate() -> None:
    """Loads the card of ``OOMPH_SIMULATE``, for ``oomph_simulate.pth``."""
    try:
        from oomph.simulate import startup
    except ImportError as error:
        print(f"oomph: the GPU is not simulated: {_explained(error)}", file=sys.stderr)
        return
    startup.main()


def _explained(error: ImportError) -> str:
    """What Python finds in place of the oomph that is installed."""
    found = getattr(sys.modules.get("oomph"), "__file__", None)
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(folder, "oomph")
    if found is None or os.path.dirname(found) == installed:
        return f"it cannot be imported ({error}): install it again"
    return (
        f"Python finds {found} in place of {installed}. Rename that file or folder, "
        "start from another folder, or take it out of PYTHONPATH"
    )
