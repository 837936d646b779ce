"""Ends a run before it would change a file that was there when the question was asked.

A script that goes on to its end writes results anew, and deletes older checkpoints of
an earlier training. What it wrote itself since then it may change.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable
from typing import Any


def end_before_changes(begin_s: float, end: Callable[[str], object]) -> None:
    """From now on, before a file of before is written anew, moved or deleted, it ends.

    Args:
        begin_s: Files that have not changed since then, in seconds of ``time.time()``,
            were there before. Empty ones do not count.
        end: Is given such a file, and does not return.
    """
    sys.dont_write_bytecode = True

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        find = _CHANGED.get(event)
        for path in () if find is None else find(*arguments):
            if _is_of(path, begin_s):
                end(os.fsdecode(path))

    sys.addaudithook(look)


def _opened(path: Any, _: str | None, flags: int) -> Iterable[Any]:
    return (path,) if flags & os.O_TRUNC else ()


def _removed(path: Any, folder: int) -> Iterable[Any]:
    return (path,) if folder == -1 else ()  # else :func:`_of_tree` has seen it


def _of_tree(path: Any, _: int | None) -> Iterable[Any]:
    for folder, _folders, names in os.walk(path):
        yield from (os.path.join(folder, name) for name in names)


_CHANGED: dict[str, Callable[..., Iterable[Any]]] = {
    "open": _opened,
    "os.remove": _removed,
    "os.rename": lambda path, to, *_: (path, to),
    "shutil.rmtree": _of_tree,
}


def _is_of(path: Any, before_s: float) -> bool:
    """Whether it is a file that has something in it, of before then."""
    try:
        found = os.lstat(path)
    except (OSError, TypeError, ValueError):  # there is none, or it is a descriptor
        return False
    is_full = stat.S_ISREG(found.st_mode) and found.st_size > 0
    return is_full and found.st_ctime < before_s
