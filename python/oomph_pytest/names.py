"""The markers and the fixture by name, and which tests have one."""

from __future__ import annotations

import pytest

FIXTURE = "cuda_memory"
FITS = "fits_cuda"
MARKERS = {
    FITS: "(card, way='oomph', host='64GiB', seconds=600, settings=''): the test runs "
    "in a process of its own on a simulated card, such as '12GiB', and must fit it",
    "limit_cuda_memory": "(limit): the test may allocate at most this much GPU memory "
    "at a time, such as '24 MiB'; what was allocated before it does not count",
    "limit_cuda_leaks": "(limit, warmups=0): at most this much of what the test "
    "allocated on the GPU may be left; it first runs warmups times, unmeasured",
    "stable_cuda_peak": "(steps, warmup=1, optimizer_steps=1, tolerance=0): after the "
    "warm-up, the peak of GPU memory must not grow over that many steps",
    "no_cuda_oom": "(allow_rescues=True): no allocation may run out of GPU memory, "
    "even if the test catches the error",
    "no_worse_metric": "(name, tolerance=0, better='lower', baseline=None): what the "
    "test reports with cuda_memory.metric() must not be worse than in a stored run",
}
is_on_card = False  # whether this process runs one test with FITS


def concerns(item: pytest.Item) -> bool:
    """Whether a test has a marker, or the fixture."""
    return any(mark.name in MARKERS for mark in item.iter_markers()) or (
        FIXTURE in getattr(item, "fixturenames", ())
    )
