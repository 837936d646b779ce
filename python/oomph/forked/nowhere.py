"""What a step writes where it runs again: it goes nowhere.

The child may write nothing (:mod:`oomph.forked.child`), and an error there would end
the step: many keep a log, or save a checkpoint at times. What they read is read.
Nothing is pickled, as tensors have no values there.
"""

from __future__ import annotations

import builtins
import io
import logging
import os
import pickle
import shutil
from typing import Any

import torch

_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = {
    os: (
        *("remove", "unlink", "rename", "replace", "link", "symlink", "truncate"),
        *("mkdir", "makedirs", "rmdir", "removedirs", "chmod", "chown", "utime"),
    ),
    shutil: ("rmtree", "copystat", "copymode"),
    pickle: ("dump",),
    torch: ("save",),
}
_COPIES = ("copyfile", "copy", "copy2", "copytree", "move")  # they give where to
_open, _os_open = io.open, os.open


def write_nowhere() -> None:
    """From now on files are only read; for a process that ends soon."""
    builtins.open = io.open = _opened
    os.open = _os_opened
    for module, names in _CHANGES.items():
        for name in names:
            setattr(module, name, _nothing)
    for name in _COPIES:
        setattr(shutil, name, _copied)
    os.system = _succeeded
    logging.FileHandler._open = _opened_late  # type: ignore[method-assign,assignment]


def _opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    if not set(mode) & set("wax+"):
        return _open(file, mode, *args, **kwargs)
    kwargs["opener"] = None
    return _open(os.devnull, mode.replace("x", "w"), *args, **kwargs)


def _os_opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
    if not flags & _FLAGS:
        return _os_open(path, flags, *args, **kwargs)
    return _os_open(os.devnull, flags & ~(os.O_CREAT | os.O_EXCL))


def _opened_late(handler: logging.FileHandler) -> Any:
    return _open(os.devnull, "w", encoding=handler.encoding)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """In place of a function that changes a file."""


def _copied(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    return target


def _succeeded(command: Any) -> int:
    return 0
