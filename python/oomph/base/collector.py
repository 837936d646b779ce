"""Python's collector of garbage, and the objects that it knows."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_S = 5.0  # whoever looks may wait for a lock that the waiting thread holds

_looks = threading.RLock()


@contextmanager
def paused() -> Iterator[None]:
    """No garbage is collected meanwhile, so no finalizer of a program runs."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def _no_other_looks() -> Iterator[None]:
    has_turn = _looks.acquire(timeout=PATIENCE_S)
    try:
        yield
    finally:
        if has_turn:
            _looks.release()


@contextmanager
def all_objects() -> Iterator[list[Any]]:
    """All objects that the collector knows; they live as long as somebody looks.

    One thread looks at a time. Where looks overlap, each keeps alive what is gone but
    for the one before it, for ever.
    """
    with _no_other_looks():
        objects = gc.get_objects()
        try:
            yield objects
        finally:
            objects.clear()


def collect() -> int:
    """Collects garbage, with what was kept alive by who looked.

    Returns:
        As ``gc.collect()`` does.
    """
    with _no_other_looks():
        return gc.collect()
