"""Whether a process can go on as several forks, and what each of them needs for that.

A fork has only the thread that forks, and shares with its twins what is open. So there
may be no other thread, no child, and no connection to another process. Files that are
read are opened anew by each fork, and shared memory that no other process can reach,
such as locks of multiprocessing, becomes each fork's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import re
import stat
import threading
from pathlib import Path

_MAP_FIXED = 0x10
_PAUSE_SOFT = 1  # omp_pause_soft: threads end, and come back when they are needed
_SHARED_MAX_BYTES = 64 << 20  # of memory that each fork copies
_SHARED = re.compile(r"^(\w+)-(\w+) rw.s \S+ \S+ \S+ *(.*)$", re.M)


def fork() -> ctypes._FuncPointer:
    """The call of the C library that forks and informs nobody.

    Raises:
        AttributeError: It is older than glibc 2.34.
    """
    return ctypes.PyDLL(None)._Fork


def hindrance() -> str:
    """What a fork would lack or share with others; empty: it has all, and for itself.

    Threads of libraries that start them again when they need them are ended.
    """
    try:
        fork()
    except AttributeError:
        return "a C library before glibc 2.34"
    gc.collect()  # pools of processes that nobody holds still have their pipes
    _end_threads()
    count = len(os.listdir("/proc/self/task")) - 1
    if count:
        main = threading.main_thread()
        names = ", ".join(t.name for t in threading.enumerate() if t is not main)
        return f"other threads ({names or f'{count} of libraries'})"
    if _has_children():
        return "child processes"
    links = [n for n in _descriptors() if not _can_be_shared(n)]
    if links:
        names = ", ".join(os.readlink(_path(number)) for number in links)
        return f"what leads to other processes ({names})"
    shared = _shared_memory()
    others = [name for _, _, name in shared if not name.endswith("(deleted)")]
    if others:
        return f"memory that other processes may use ({', '.join(others)})"
    if sum(end - begin for begin, end, _ in shared) > _SHARED_MAX_BYTES:
        return "much memory that it shares with its children"
    return ""


def part() -> None:
    """In a fork: what it would share with its twins becomes its own."""
    _open_files_anew()
    for begin, end, _ in _shared_memory():
        _make_private(begin, end - begin)


def _end_threads() -> None:
    """Ends the threads of libraries that start them again when they need them."""
    for library in set(
        re.findall(r"\S*/libgomp\S*", Path("/proc/self/maps").read_text())
    ):
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(library).omp_pause_resource_all(_PAUSE_SOFT)
    pid = os.fork()  # OpenBLAS and others end theirs before a fork
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _has_children() -> bool:
    threads = Path("/proc/self/task").iterdir()
    return any((thread / "children").read_text() for thread in threads)


# ---- What is open


def _descriptors() -> list[int]:
    """Those that are open, but for the standard streams."""
    found = map(int, os.listdir("/proc/self/fd"))
    return [number for number in found if number > 2 and _is_open(number)]


def _is_open(number: int) -> bool:
    with contextlib.suppress(OSError):
        os.fstat(number)
        return True
    return False


def _can_be_shared(number: int) -> bool:
    mode = os.fstat(number).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISCHR(mode)


def _path(number: int) -> str:
    return f"/proc/self/fd/{number}"


def _open_files_anew() -> None:
    """Gives this process places of its own in the files that it has open."""
    import fcntl

    for number in _descriptors():
        if not stat.S_ISREG(os.fstat(number).st_mode):
            continue
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
        place = os.lseek(number, 0, os.SEEK_CUR)
        # Its name there is a link, and that of a file without a name of its own, too.
        flags &= ~(os.O_CREAT | os.O_NOFOLLOW | os.O_TMPFILE)
        opened = os.open(_path(number), flags)
        os.lseek(opened, place, os.SEEK_SET)
        os.dup2(opened, number, os.get_inheritable(number))
        os.close(opened)


# ---- Shared memory


def _shared_memory() -> list[tuple[int, int, str]]:
    """Where it begins and ends, and the file that it is of."""
    found = _SHARED.findall(Path("/proc/self/maps").read_text())
    return [(int(begin, 16), int(end, 16), name) for begin, end, name in found]


def _make_private(begin: int, count: int) -> None:
    """Puts memory of this process alone, with the same bytes, in the place of shared.

    Raises:
        OSError: There is no memory for it.
    """
    content = ctypes.string_at(begin, count)
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_size_t
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    access = mmap.PROT_READ | mmap.PROT_WRITE
    place, length, none = map(ctypes.c_size_t, (begin, count, 0))
    if library.mmap(place, length, access, flags, -1, none) != begin:
        raise OSError(ctypes.get_errno(), "shared memory cannot be copied")
    ctypes.memmove(begin, content, count)
