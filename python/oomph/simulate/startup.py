"""Loads the simulated GPU when Python starts, if OOMPH_SIMULATE names a card.

By ``oomph_simulate.pth`` and ``oomph_autoload``, in every Python process of the
environment in which oomph is installed, only if the variable is set. It must not stop
Python from starting, and the paths of other packages may not be known yet.
"""

from __future__ import annotations

import os
import sys

from oomph import simulate


def main() -> None:
    """Loads the card that the environment names; children of a failure say nothing."""
    try:
        simulate.load(os.environ[simulate.VARIABLE].strip())
    except Exception as error:
        said = "torch" in sys.modules  # when it was imported
        if not said and sys.stderr is not None:
            print(f"oomph: the GPU is not simulated: {error}", file=sys.stderr)
        del os.environ[simulate.VARIABLE]
