"""Tests for test_pytest_limits.py, which runs them on a simulated GPU of 1 GiB."""

import functools
import unittest

import pytest
import torch

MIB = 1 << 20
kept = []


def take(size_bytes):
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


# ---- limit_cuda_memory


@pytest.mark.limit_cuda_memory("24 MiB")
def test_stays_below():
    for _ in range(3):
        take(20 * MIB)


@pytest.mark.limit_cuda_memory("24 MiB")
def test_goes_beyond():
    first = take(9 * MIB)
    rest = [take(9 * MIB), take(9 * MIB), take(4 * MIB + MIB // 2)]
    del first, rest


TEXTS = ["6291456 B", "6144KB", "6144 KiB", "6 MB", "6mib", "0.005859375 GB", 6 * MIB]


@pytest.mark.parametrize(
    "extra_bytes",
    [
        pytest.param(n, marks=pytest.mark.limit_cuda_memory(text), id=f"{n}+{text}")
        for text in TEXTS
        for n in (0, 512)
    ],
)
def test_units(extra_bytes):
    take(6 * MIB + extra_bytes)


@pytest.fixture
def earlier():
    return take(100 * MIB)


@pytest.mark.limit_cuda_memory("8 MiB")
def test_has_a_large_fixture(earlier):
    take(8 * MIB)


@pytest.mark.limit_cuda_memory("24 MiB")
def test_resets_the_peak():
    take(32 * MIB)
    torch.cuda.reset_peak_memory_stats()
    torch.accelerator.reset_peak_memory_stats()


@pytest.mark.limit_cuda_memory("1 MiB")
class TestWithALimit:
    def test_as_the_class_says(self):
        take(2 * MIB)

    @pytest.mark.limit_cuda_memory("4 MiB")
    def test_says_otherwise(self):
        take(2 * MIB)


class TestOfUnittest(unittest.TestCase):
    @pytest.mark.limit_cuda_memory("1 MiB")
    def test_case(self):
        take(2 * MIB)


@pytest.mark.xfail(strict=True)
@pytest.mark.limit_cuda_memory("1 MiB")
def test_is_expected_to_fail():
    take(2 * MIB)


@pytest.mark.limit_cuda_memory("1 MiB")
def test_fails_by_itself():
    take(2 * MIB)
    raise KeyError("its own")


# ---- limit_cuda_leaks


@pytest.mark.limit_cuda_leaks("1 MiB")
@pytest.mark.parametrize("count", [0, 1, 4])
def test_leaves(count):
    kept.extend(take(MIB) for _ in range(count))


@pytest.mark.limit_cuda_leaks("0 B")
def test_leaves_a_cycle():
    cycle = [take(2 * MIB)]
    cycle.append(cycle)


@pytest.mark.limit_cuda_leaks("0 B")
def test_uses_libraries():
    layer = torch.nn.Linear(64, 64, device="cuda")
    layer(torch.ones(64, 64, device="cuda")).sum().backward()


@functools.cache
def table(user):
    return take(2 * MIB)


@pytest.mark.limit_cuda_leaks("0 B")
def test_fills_a_cache():
    table("fills")


left = []


@pytest.mark.limit_cuda_leaks("0 B", warmups=2)
def test_has_filled_a_cache(cuda_memory):
    cuda_memory(table, "has filled")
    left.append(cuda_memory.figures["left_bytes"])


def test_has_run_three_times():
    assert left == [2 * MIB, 2 * MIB, 0]  # of several measurings the largest


class TestOfUnittestThatWarmsUp(unittest.TestCase):
    @pytest.mark.limit_cuda_leaks("0 B", warmups=1)
    def test_case(self):
        table("of unittest")


@pytest.mark.limit_cuda_leaks("0 B", warmups=1)
def test_leaks_in_every_run():
    kept.append(take(MIB))


@pytest.mark.limit_cuda_leaks("0 B", warmups=1)
def test_fails_while_warming_up():
    raise KeyError("its own")


@pytest.mark.limit_cuda_leaks("1 MiB")
@pytest.mark.limit_cuda_memory("3 MiB")
def test_breaks_two():
    kept.append(take(4 * MIB))


# ---- stable_cuda_peak


def train(keep, steps=6, every=1):
    layer = torch.nn.Linear(512, 512, device="cuda")
    optimizer = torch.optim.Adam(layer.parameters())
    for step in range(steps):
        rows = 64 if step % every else 256
        output = layer(torch.ones(rows, 512, device="cuda")).relu()
        keep(output)
        output.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.stable_cuda_peak(steps=5)
def test_trains():
    train(id)


@pytest.mark.stable_cuda_peak(steps=3)
def test_keeps_outputs():
    outputs = []
    train(outputs.append)


@pytest.mark.stable_cuda_peak(steps=3, tolerance="4 MiB")
def test_keeps_outputs_which_is_tolerated():
    outputs = []
    train(outputs.append)


@pytest.mark.stable_cuda_peak(steps=6)
def test_has_too_few_steps():
    train(id)


@pytest.mark.stable_cuda_peak(steps=3, optimizer_steps=2)
def test_has_too_few_epochs():
    train(id, steps=7)


@pytest.mark.stable_cuda_peak(steps=2, optimizer_steps=2)
def test_has_epochs_of_two_steps():
    train(id, every=2)


@pytest.mark.stable_cuda_peak(steps=2)
def test_has_unequal_steps():
    train(id, every=2)


@pytest.mark.stable_cuda_peak(steps=2, warmup=0)
@pytest.mark.parametrize("grows", [False, True])
def test_ends_its_own_steps(cuda_memory, grows):
    held = []
    for _ in range(2):
        held.append(take(MIB))
        if not grows:
            held.clear()
        cuda_memory.step()


# ---- no_cuda_oom


@pytest.mark.no_cuda_oom
def test_fits():
    take(MIB)


@pytest.mark.no_cuda_oom
def test_catches_the_error():
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            take(4 << 30)


@pytest.mark.no_cuda_oom
def test_raises_the_error():
    held = take(3 * MIB)
    take(4 << 30)
    del held


# ---- what cannot be


@pytest.mark.no_worse_metric("loss")
def test_reports_what_nothing_computed(cuda_memory):
    cuda_memory.metric("loss", 0.0)


BAD = [
    pytest.mark.limit_cuda_memory("24 lightyears"),
    pytest.mark.limit_cuda_memory("24"),
    pytest.mark.limit_cuda_memory(),
    pytest.mark.limit_cuda_leaks("1 MiB", per="call"),
    pytest.mark.limit_cuda_leaks(None),
    pytest.mark.limit_cuda_leaks("1 MiB", warmups=0.5),
    pytest.mark.stable_cuda_peak(steps=1),
    pytest.mark.stable_cuda_peak(steps=2, warmup=-1),
    pytest.mark.no_cuda_oom("never"),
    pytest.mark.no_worse_metric("loss", better="bigger"),
    pytest.mark.no_worse_metric("loss", tolerance="-1%"),
    pytest.mark.no_worse_metric("loss", baseline="good"),
]


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=mark) for n, mark in enumerate(BAD)]
)
def test_bad(cuda_memory, number):
    raise AssertionError("a test with a bad marker ran")


@pytest.mark.no_worse_metric("loss")
def test_lacks_the_fixture():
    raise AssertionError("a test with a bad marker ran")
