"""All programs, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

GROUPS = ("plain", "pictures", "generative", "language", "trainers")


def programs() -> dict[str, Callable[[], Iterator[str] | None]]:
    """All of them, in the order of their files."""
    found = {}
    for group in GROUPS:
        module = importlib.import_module(group)
        found |= {program.__name__: program for program in module.PROGRAMS}
    return found
