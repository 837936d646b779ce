"""The modules that are loaded, and which of them are the program's own."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from oomph.memory.sites import is_user


def namespaces(wanted: Callable[[str], bool]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The names of modules whose package is wanted, and their globals."""
    for name in list(sys.modules):
        if wanted(name.partition(".")[0]):
            module = sys.modules.get(name)
            if isinstance(module, types.ModuleType):
                yield name, vars(module)


@functools.cache
def is_of_program(package: str) -> bool:
    """Whether it is not Python's, nor an installed package."""
    module = sys.modules.get(package)
    folders = getattr(module, "__path__", ())  # of a package without a file of its own
    place = getattr(module, "__file__", None) or next(iter(folders), None)
    return is_user(place) if isinstance(place, str) else package == "__main__"
