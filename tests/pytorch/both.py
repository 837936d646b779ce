"""Runs one body with PyTorch's own allocator and with oomph, on equal simulated cards.

The tests in this folder have the names of PyTorch's own, and check what those check.
Where oomph does otherwise on purpose, the body asks :func:`differs`, and the table in
differences.py says what and why. Where it does otherwise by mistake, the test is
``@both(bug=...)``: it must fail until that is mended. What this PyTorch does not have
yet, by the same table, must fail both ways.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from differences import CHANGED, DIFFERENCES, NEWER
from support import MIB, Simulated

CARD = "1GiB,context=0,memory=values,host=4GiB"
CONF = "reserve:0,offload:off"
WAYS = {"native": None, "oomph": CONF}


def cards(card: str = CARD, **variables: str) -> dict[str, Simulated]:
    """A process for each way, on a card of this description."""
    return {way: Simulated(card, conf, **variables) for way, conf in WAYS.items()}


ONE = cards()
TWO = cards(f"{CARD},devices=2")


def both(
    body: Callable[..., Any] | None = None,
    *,
    on: dict[str, Simulated] = ONE,
    bug: str | None = None,
) -> Callable[..., Any]:
    """A decorator that runs a test's body in both ways.

    Args:
        body: The test's body; its arguments must be JSON.
        on: The processes.
        bug: Why it fails with oomph; it must, until that is mended.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        if "remote" in sys.modules:  # this is the process that runs bodies
            return _with_little_to_collect(body)

        parameters = inspect.signature(body).parameters.values()

        def test(way: str, **arguments: Any) -> None:
            __tracebackhide__ = True
            values = [arguments[parameter.name] for parameter in parameters]
            on[way].call(body.__module__, body.__name__, *values)

        test.__name__, test.__doc__ = body.__name__, body.__doc__
        test.__module__ = body.__module__
        lacks = _lacking(body.__name__)
        way = inspect.Parameter("way", inspect.Parameter.KEYWORD_ONLY)
        test.__signature__ = inspect.Signature([*parameters, way])  # type: ignore[attr-defined]
        names = [
            pytest.param("native", marks=lacks),
            pytest.param("oomph", marks=lacks or _known(bug)),
        ]
        return pytest.mark.parametrize("way", names, scope="module")(test)

    return decorate if body is None else decorate(body)


def _with_little_to_collect(body: Callable[..., Any]) -> Callable[..., Any]:
    """Each capture collects garbage, and what PyTorch has made before is none."""

    @functools.wraps(body)
    def run(*arguments: Any) -> Any:
        gc.freeze()
        return body(*arguments)

    return run


def ways(bug: str | None = None) -> pytest.MarkDecorator:
    """A decorator for a test that starts its own process, with these settings."""
    ours = pytest.param(CONF, marks=_known(bug))
    return pytest.mark.parametrize("conf", [None, ours], ids=list(WAYS))


def _lacking(name: str) -> list[pytest.MarkDecorator]:
    """For a test of what this PyTorch does not have: it must fail, both ways."""
    ours = version(torch.__version__)
    newer, changed = NEWER.get(name), CHANGED.get(name)
    if newer is not None and ours < version(newer.since):
        return _known(f"PyTorch has it from {newer.since} on: {newer.what}")
    if changed is not None and ours >= version(changed.since):
        return _known(f"PyTorch does otherwise from {changed.since} on: {changed.what}")
    return []


def version(text: str) -> tuple[int, ...]:
    """A version of PyTorch as it is compared: major and minor."""
    return tuple(map(int, text.split(".")[:2]))


def _known(bug: str | None) -> list[pytest.MarkDecorator]:
    return [] if bug is None else [pytest.mark.xfail(strict=True, reason=bug)]


def native() -> bool:
    """Whether PyTorch's own allocator serves this process."""
    import oomph

    return not oomph.is_installed()


def differs(name: str, conf: str | None = "") -> bool:
    """Whether oomph does otherwise here, as the table says of the test of this name.

    A test that starts its own process says how.
    """
    assert name in DIFFERENCES, f"{name} is not in differences.py"
    return not native() if conf == "" else conf is not None


def take(size_bytes: int, device: int = 0) -> torch.Tensor:
    """A block of this size."""
    return torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{device}")


def take_mib(count: int, device: int = 0) -> torch.Tensor:
    return take(count * MIB, device)


def stat(key: str, device: int = 0) -> int:
    """One of PyTorch's figures."""
    return int(torch.cuda.memory_stats(device).get(key, 0))


def pool_segments(pool: tuple[int, int]) -> list[dict[str, Any]]:
    """The segments of a graph's pool, or of a MemPool."""
    found = torch.cuda.memory_snapshot()
    return [segment for segment in found if segment["segment_pool_id"] == pool]


def keep_busy() -> None:
    """The card works on the current stream until something waits for that.

    What PyTorch's tests reach with a kernel that spins, however the clock goes here.
    """
    from remote import sim

    torch.cuda._sleep(1000)
    sim.oomph_sim_hold(torch.cuda.current_stream().cuda_stream or None)
