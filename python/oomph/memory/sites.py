"""Which line of the user's code holds the memory.

Every block of at least 1 MiB knows the line that asked for it: the innermost one of the
user's own code, which is neither of PyTorch, of Python's library, of an installed
package nor of oomph (where there is none: the innermost of any). What backward
allocates is attributed to the line of forward that it belongs to, and marked as
inferred. How this is found without the GIL: csrc/python/interpreter/frames.c,
csrc/torch/allocator/sites.hpp.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from oomph import _C
from oomph.base.log import logger

_PACKAGE = Path(__file__).parent.parent
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__))  # Python's own
_CELL = "ipykernel"  # in the name of a file that holds a notebook's cell
# What a function has no name for, and what it does within itself.
_WITHIN = re.compile(r"(\.<locals>\.<(genexpr|listcomp|dictcomp|setcomp)>)+$")


@dataclass(frozen=True)
class Site:
    """A line that allocates.

    Attributes:
        file: As the code object names it: mostly a path.
        line: From 1.
        function: Its qualified name, such as ``Model.forward``.
        inferred: The line did not allocate itself: its backward did.
    """

    file: str
    line: int
    function: str
    inferred: bool = False

    @property
    def method(self) -> tuple[str, str]:
        """Class and name of the method that the line is in, or a function within it.

        The class is "" for a function that is no method.
        """
        owner, _, name = self.function.rpartition(".")
        while owner.endswith(".<locals>"):
            owner, _, name = owner.removesuffix(".<locals>").rpartition(".")
        return owner, name

    def __str__(self) -> str:
        """File and line, as tracebacks have them, and the function."""
        return f"{self.file}:{self.line} ({self.function})"


@dataclass(frozen=True)
class Held:
    """What the blocks in use of one site take on a device.

    Attributes:
        site: The number of the site in this process; equal for equal lines.
        size_bytes: Of all its blocks.
        count: How many blocks.
    """

    site: int
    size_bytes: int
    count: int


def short(file: str) -> str:
    """A file's name from the working directory, or in full if it is elsewhere."""
    if not os.path.isabs(file):
        return file
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def place(file: str, line: int) -> str:
    """A line as people find it: file and number; in a notebook its cell and number."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name = getattr(getattr(shell, "compile", None), "format_code_name", None)
    cell = name(file) if name is not None else None
    return f"{' '.join(cell)}, line {line}" if cell else f"{short(file)}:{line}"


@functools.cache
def is_user(file: str) -> bool:
    """Whether a file is the user's: not Python's, nor an installed package's."""
    if file.startswith("<"):
        return file.startswith("<ipython")
    if _CELL in file:
        return True
    path = os.path.abspath(file)
    packages = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
    return not (
        path.startswith((f"{_PACKAGE}{os.sep}", f"{_LIBRARY}{os.sep}"))
        or any(part in path for part in packages)
        or any(path.startswith(folder + os.sep) for folder in _installed_on_path())
        or _is_of_package(path)
    )


def _is_of_package(path: str) -> bool:
    """Whether an installed package has written a module of its own there."""
    for name, module in [*sys.modules.items()]:
        root, _, inner = name.partition(".")
        if inner and getattr(module, "__dict__", {}).get("__file__") == path:
            file = getattr(sys.modules.get(root), "__dict__", {}).get("__file__")
            return isinstance(file, str) and file != path and not is_user(file)
    return False


def _installed_on_path() -> list[str]:
    """The folders to import from in which packages were installed: --target does it."""
    return list(filter(_has_packages, map(os.path.abspath, sys.path)))


@functools.lru_cache(maxsize=256)
def _has_packages(folder: str) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:  # an archive, or nothing
        return False


def main_line() -> tuple[str, bool]:
    """The user's line that the main thread is at, and whether PyTorch works for it."""
    import torch

    innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    frame = innermost
    while frame is not None and not _may_be_user(frame.f_code.co_filename):
        frame = frame.f_back
    if innermost is None or frame is None:
        return "an unknown line", False
    folder = os.path.join(os.path.dirname(torch.__file__), "")
    is_in_torch = innermost.f_code.co_filename.startswith(folder)
    return place(frame.f_code.co_filename, frame.f_lineno), is_in_torch


def _may_be_user(file: str) -> bool:
    return is_user(file) or file == "<string>"  # python -c


def resolve(site: int) -> Site | None:
    """The line that a number stands for; None for 0, which is unknown.

    Args:
        site: As :func:`live`, ``_C.site_of`` and ``_C.live_blocks`` give it.
    """
    if not site & ~_C.SITE_INFERRED:
        return None
    file, line, function = _C.site_info(site)
    return Site(file, line, _WITHIN.sub("", function), bool(site & _C.SITE_INFERRED))


def live(device: int) -> list[Held]:
    """What each known site holds on a device now, the largest first.

    What backward allocated for a line has a number of its own. Costs a look at each
    site, not at each block.

    Example:
        >>> for held in sites.live(0)[:3]:
        ...     print(sites.resolve(held.site), held.size_bytes)
    """
    return _largest_first(_C.live_sites(device))


def at_peak(device: int) -> list[Held]:
    """What each site held on a device when they held most together; as :func:`live`.

    Since the last ``torch.cuda.reset_peak_memory_stats()``.
    """
    return _largest_first(_C.peak_sites(device))


def _largest_first(rows: list[tuple[int, int, int]]) -> list[Held]:
    found = [Held(*row) for row in rows]
    return sorted(found, key=lambda held: held.size_bytes, reverse=True)


def start() -> None:
    """Begins to know the lines; says so in the log if this Python cannot be read."""
    reason = _start()
    if reason is not None:
        logger.info("call sites are unknown: %s", reason)


@functools.cache
def _start() -> str | None:
    return _C.sites_start(_library_prefixes())


def _library_prefixes() -> list[str]:
    """Where code lies that is not the user's: the starts of its files' names."""
    folders = {_LIBRARY, str(_PACKAGE), *_installed_on_path()}
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__ is not None:
        folders.add(str(Path(torch.__file__).parent))
    return [f"{folder}/" for folder in sorted(folders)]
