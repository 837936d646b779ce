"""What a mutation is, and how tests are named."""

from __future__ import annotations

import re
from dataclasses import dataclass

from campaign.planted import Plant


@dataclass(frozen=True)
class Mutation:
    """A mistake of a few lines.

    Attributes:
        file: Where, from the root of the repository.
        old: What stands there once.
        new: What takes its place.
        asked: The tests that are asked first, the cheapest first: the begins of the
            names that pytest has for them, or ``c:PROGRAM`` for one of the C tests.
    """

    file: str
    old: str
    new: str
    asked: tuple[str, ...]

    @property
    def plant(self) -> Plant:
        """What puts it into a checkout."""
        return Plant(((self.file, self.old, self.new),))


def is_named(test: str, name: str) -> bool:
    """Whether a test is one of those that a name stands for.

    Args:
        test: What pytest calls it.
        name: One of :attr:`Mutation.asked`.
    """
    if name.startswith("c:"):
        program = re.escape(name[2:])
        return re.search(rf"\[(address|none)-{program}(-\d+)?\]$", test) is not None
    return test == name or test.startswith((f"{name}/", f"{name}::", f"{name}["))
