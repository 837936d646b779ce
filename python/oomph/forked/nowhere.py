"""What a step writes where it runs again: it goes nowhere.

The child may write nothing (:mod:`oomph.forked.child`), and an error there would end
the step: many keep a log, or save a checkpoint at times. What they read is read.
Nothing is pickled, as tensors have no values there.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

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
_open: Any = io.open
_os_open = os.open


def write_nowhere() -> None:
    """From now on files are only read; for a process that ends soon."""
    instead: dict[Any, Any] = {io.open: _opened, os.open: _os_opened}
    instead[os.system] = _succeeded
    for module, names in _CHANGES.items():
        instead |= dict.fromkeys((getattr(module, name) for name in names), _nothing)
    instead |= dict.fromkeys((getattr(shutil, name) for name in _COPIES), _copied)
    by_id = {id(original): new for original, new in instead.items()}
    for known in {**sys.modules, __name__: None}.values():  # many import them by name
        if isinstance(known, ModuleType):
            there = vars(known)
            there.update({n: by_id[id(v)] for n, v in there.items() if id(v) in by_id})
    _change_defaults(vars(tempfile._TemporaryFileCloser).values(), by_id)  # type: ignore[attr-defined]
    logging.FileHandler._open = _opened_late  # type: ignore[method-assign,assignment]


def _change_defaults(functions: Iterable[Any], by_id: dict[int, Any]) -> None:
    """Replaces what functions have as values of arguments that nobody gives."""
    for function in functions:
        if getattr(function, "__defaults__", None):
            kept = (by_id.get(id(value), value) for value in function.__defaults__)
            function.__defaults__ = tuple(kept)


def _opened(
    file: Any, mode: str = "r", *args: Any, opener: Any = None, **kwargs: Any
) -> Any:
    if not set(mode) & set("wax+"):
        return _open(file, mode, *args, opener=opener, **kwargs)
    if opener is not None:  # as those of tempfile, which find a name
        os.close(opener(file, os.O_RDWR | os.O_CREAT))
    return _open(_in_memory(), mode.replace("x", "w"), *args, **kwargs)


def _os_opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
    if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return _os_open(path, flags, *args, **kwargs)
    return _in_memory()


def _opened_late(handler: logging.FileHandler) -> Any:
    return _open(_in_memory(), "w", encoding=handler.encoding)


def _in_memory() -> int:
    """A file that nobody else sees."""
    return os.memfd_create("nowhere")


def _nothing(*args: Any, **kwargs: Any) -> None:
    """In place of a function that changes a file."""


def _copied(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    return target


def _succeeded(command: Any) -> int:
    return 0
