"""Loads the simulated GPU when Python starts, if OOMPH_SIMULATE names a card.

Imported by ``oomph_simulate.pth``, in every Python process of the environment in which
oomph is installed, only if the variable is set. It must not stop Python from starting.
"""

from __future__ import annotations

import os
import sys

from oomph import simulate


def main() -> None:
    """Loads the card that the environment names."""
    try:
        simulate.load(os.environ[simulate.VARIABLE])
    except simulate.SimulationError as error:
        print(f"oomph: the GPU is not simulated: {error}", file=sys.stderr)


if os.environ.get(simulate.VARIABLE):
    main()
