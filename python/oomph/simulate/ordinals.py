"""Says how a program gets the devices that it asks for and the machine lacks."""

from __future__ import annotations

import sys
from types import TracebackType

from oomph.simulate.driver import parse_card

_OF_CUDA = "invalid device ordinal"  # what CUDA calls it


def explain(error: BaseException, card: str) -> str:
    """What to set where a device was asked for that the machine lacks; else "".

    Args:
        error: What the program ended with.
        card: The simulated card.
    """
    if _OF_CUDA not in str(error):
        return ""
    count = parse_card(card).devices
    has = f"{count} devices, up to cuda:{count - 1}"
    if count == 1:
        has = "1 device, cuda:0"
    return (
        f"oomph: the simulated machine has {has}. Give the card devices= and how many "
        "the program needs, such as rtx4090,devices=4 for cuda:3"
    )


def follow(card: str) -> None:
    """Explains such an error where it ends the program, after what Python prints."""
    before = sys.excepthook

    def show(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        before(kind, error, trace)
        said = explain(error, card)
        if said:
            print(said, file=sys.stderr)

    sys.excepthook = show
