"""Two records of allocations: where they part, and what libraries explain."""

import runpy

import pytest
from support import ROOT

traces = runpy.run_path(str(ROOT / "benchmarks" / "hardware" / "traces.py"))
compare, events_of = traces["compare"], traces["events_of"]

CONVOLUTION = [
    {"name": "c10::cuda::take()", "filename": "??", "line": 0},
    {"name": "at::native::empty_cuda(long)", "filename": "??", "line": 0},
    {"name": "at::native::run_cudnn_plan(int)", "filename": "??", "line": 0},
    {"name": "forward", "filename": "/any/folder/net.py", "line": 7},
]


def alloc(addr: int, size: int, stream: int = 0, frames: list | None = None) -> dict:
    entry = {"action": "alloc", "addr": addr, "size": size, "stream": stream}
    return {**entry, "frames": frames or []}


def free(addr: int, size: int) -> list[dict]:
    entry = {"addr": addr, "size": size, "stream": 0}
    return [{"action": f"free_{end}", **entry} for end in ("requested", "completed")]


def segment(addr: int, size: int) -> dict:
    return {"action": "segment_alloc", "addr": addr, "size": size, "stream": 0}


def compared(left: list[dict], right: list[dict]):
    return compare(events_of(left), events_of(right))


def test_addresses_and_handles_of_streams_make_no_difference():
    left = [segment(0, 2048), alloc(10, 512), alloc(11, 256, 7), *free(10, 512)]
    right = [segment(9, 2048), alloc(90, 512), alloc(30, 256, 8), *free(90, 512)]
    found = compared(left, right)
    assert (found.requests, found.libraries, found.segments) == (None, [], None)


@pytest.mark.parametrize(
    "right",
    [
        [alloc(1, 512), alloc(2, 300)],
        [alloc(1, 512)],
        [alloc(1, 512), alloc(2, 256, stream=5)],
        [alloc(1, 512), alloc(2, 256), *free(2, 256)],
    ],
    ids=["size", "missing", "stream", "more"],
)
def test_the_first_request_that_differs_is_reported(right):
    left = [alloc(1, 512), alloc(2, 256)]
    found = compared(left, right)
    assert found.requests["after"] == min(len(left), 1 + (len(right) > 2))
    assert len(found.problems) == 1


def test_a_free_of_another_block_is_a_difference():
    both = [alloc(1, 512), alloc(2, 512)]
    found = compared([*both, *free(1, 512)], [*both, *free(2, 512)])
    assert found.requests["left"]["number"] == 0
    assert found.requests["right"]["number"] == 1


def test_the_order_of_frees_that_follow_each_other_makes_no_difference():
    both = [alloc(1, 512), alloc(2, 512)]
    left = [*both, *free(1, 512), *free(2, 512)]
    right = [*both, *free(2, 512), *free(1, 512)]
    assert compared(left, right).requests is None


def test_what_only_one_sides_libraries_take_is_reported_by_size_and_site():
    left = [alloc(1, 512), *free(1, 512)]
    workspace = [alloc(2, 4096, frames=CONVOLUTION), *free(2, 4096)]
    found = compared(left, [left[0], segment(0, 8192), *workspace, *left[1:]])
    site = "at::native::run_cudnn_plan net.py:7"
    assert found.libraries == [{"size": 4096, "site": site, "left": 0, "right": 1}]
    assert found.requests is None
    assert found.segments is not None
    assert found.problems == []


def test_what_libraries_take_on_both_sides_is_held_to_its_place():
    workspace = [alloc(2, 4096, frames=CONVOLUTION), *free(2, 4096)]
    found = compared([alloc(1, 512), *workspace], [*workspace, alloc(1, 512)])
    assert found.libraries == []
    assert found.requests["after"] == 0


def test_segments_that_differ_without_a_librarys_doing_are_a_problem():
    both = [alloc(1, 512)]
    found = compared([segment(0, 2048), *both], [segment(0, 4096), *both])
    assert found.requests is None
    assert found.segments["left"]["size"] == 2048
    assert len(found.problems) == 1
