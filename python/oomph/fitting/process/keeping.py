"""Keeps the files that were there when the question was asked.

A script writes its results anew, and deletes checkpoints of an earlier training. So
what it opens to write is a copy; where it would move or delete a file of before it is
ended. What it has written itself since then it may change.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_WRITES = frozenset("wa+")
_COPIED_MAX_BYTES = 64 << 20  # a larger file is opened itself


def keep(begin_s: float, folder: Path, end: Callable[[str], object]) -> None:
    """From now on no file of before is written anew, moved or deleted.

    Args:
        begin_s: Files that have not changed since then, in seconds of ``time.time()``,
            were there before. Empty ones do not count.
        folder: For copies.
        end: Is given a file before it would be changed, and does not return.
    """
    sys.dont_write_bytecode = True
    _open_copies(begin_s, folder)

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        find = _CHANGED.get(event)
        for path in () if find is None else find(*arguments):
            if _is_of(path, begin_s):
                end(os.fsdecode(path))

    sys.addaudithook(look)


# ---- what Python opens


def _open_copies(begin_s: float, folder: Path) -> None:
    native = builtins.open
    copies: dict[str, Path] = {}

    def copy_of(file: Any, mode: str) -> Path | None:
        if not isinstance(file, str | bytes | os.PathLike):
            return None
        name = os.path.abspath(os.fsdecode(file))
        if name in copies:
            return copies[name]
        if not _WRITES & set(mode) or not _is_of(file, begin_s):
            return None
        anew = "w" in mode
        if not anew and os.path.getsize(name) > _COPIED_MAX_BYTES:
            return None
        folder.mkdir(exist_ok=True)
        copy = folder / str(len(copies))
        if not anew:
            shutil.copyfile(name, copy)
        copies[name] = copy
        return copy

    def opened(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        return native(copy_of(file, mode) or file, mode, *rest, **named)

    for module in (builtins, io):
        module.open = opened  # type: ignore[attr-defined]


# ---- what is not opened that way


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
