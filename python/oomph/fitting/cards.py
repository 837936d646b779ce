"""The cards that a script is to fit."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from oomph import simulate
from oomph.base.sizes import format_size, parse_size

WELL_KNOWN = "rtx3060,rtx4090,a100-40gb,h100"
HOST = "64GiB"  # memory of the host, if nothing is said
ROOMY = "4TiB"  # more than a program of one machine needs


@dataclass(frozen=True)
class Target:
    """A card that a script is to fit.

    Attributes:
        name: As it was asked for.
        text: The simulated card.
        roomy: The same with far more memory.
        memory_bytes: Of the card.
        host_bytes: Of host memory.
        has_rates: Whether its times are known.
    """

    name: str
    text: str
    roomy: str
    memory_bytes: int
    host_bytes: int
    has_rates: bool


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name cards, for :func:`targets`."""
    parser.add_argument(
        "--gpu",
        metavar="CARD,…",
        default=WELL_KNOWN,
        help="sizes or names, such as 12GiB,rtx4090 (default: %(default)s)",
    )
    parser.add_argument(
        "--host",
        metavar="SIZE",
        default=HOST,
        help="memory of the host, half of which oomph may use (default: %(default)s)",
    )


def targets(names: str, host: str, *keys: str) -> list[Target]:
    """The cards of a list, the smallest first.

    Args:
        names: Sizes or names with commas between them, each with keys if need be, such
            as ``12GiB,rtx4090,24GiB,gpu=h100,link=25GB/s``.
        host: Size of the host memory that each may use, unless its keys say it.
        *keys: More of each.

    Raises:
        simulate.SimulationError: There is no such card, or host memory.
    """
    each: list[str] = []
    for part in names.split(","):
        if "=" in part and each:
            each[-1] += f",{part}"
        else:
            each.append(part)
    found = [_target(name.strip(), host, keys) for name in dict.fromkeys(each)]
    return sorted(found, key=lambda target: target.memory_bytes)


def of_size(card: Target, memory_bytes: int) -> Target:
    """A card with other memory, in search of the smallest."""
    text = card.roomy.replace(ROOMY, str(memory_bytes), 1)
    name = f"{format_size(memory_bytes)}, in search of the smallest card"
    return replace(card, name=name, text=text, memory_bytes=memory_bytes)


def _target(name: str, host: str, more: Sequence[str]) -> Target:
    first, *keys = [*name.split(","), *more]
    if not any(key.strip().startswith("host=") for key in keys):
        keys.append(f"host={host}")
    text = ",".join([first, *keys])
    card = simulate.parse_card(text)
    try:
        parse_size(first)
        roomy = [ROOMY, *keys]
    except ValueError:
        roomy = [ROOMY, f"gpu={first}", *keys]
    return Target(
        name,
        text,
        ",".join(roomy),
        card.memory_bytes,
        card.host_bytes or 0,
        card.has_rates,
    )
