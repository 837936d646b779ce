"""Tests for test_pytest_cards.py, which runs them where there is no GPU."""

import functools
import os
import subprocess
import sys
import unittest

import pytest

MIB = 1 << 20
CARD = "512MiB,context=0"


@functools.cache
def torch():
    import torch

    return torch


def take(size_bytes):
    return torch().empty(size_bytes, dtype=torch().uint8, device="cuda")


@pytest.mark.fits_cuda(CARD, settings="reserve:0")
def test_fits():
    assert torch().cuda.get_device_properties(0).total_memory == 512 * MIB
    take(100 * MIB)


@pytest.mark.fits_cuda(CARD, settings="reserve:0")
def test_does_not_fit():
    first = take(300 * MIB)
    second = take(200 * MIB)
    del first, second


@pytest.mark.fits_cuda(CARD, settings="reserve:0", way="native")
def test_does_not_fit_native():
    first = take(300 * MIB)
    second = take(200 * MIB)
    del first, second


@pytest.mark.fits_cuda(CARD, way="native")
def test_has_the_allocator_of_the_marker():
    assert torch().cuda.get_allocator_backend() == "native"


@pytest.mark.fits_cuda(CARD, settings="reserve:0", way="rescue")
def test_fits_with_the_host():
    first = take(300 * MIB)
    second = take(200 * MIB)
    del first, second


@pytest.mark.fits_cuda(CARD, settings="reserve:0")
def test_goes_on_with_less():
    try:
        take(500 * MIB)
    except torch().OutOfMemoryError:
        take(100 * MIB)


@pytest.fixture
def weights():
    return take(200 * MIB)


@pytest.mark.fits_cuda("1GiB,context=0")
@pytest.mark.parametrize("size_bytes", [8 * MIB, 16 * MIB])
def test_has_fixtures(weights, size_bytes, tmp_path):
    assert weights.numel() == 200 * MIB
    take(size_bytes)


@pytest.mark.fits_cuda("128MiB,context=0")
def test_has_a_fixture_that_does_not_fit(weights):
    pass


@pytest.mark.limit_cuda_memory("8 MiB")
@pytest.mark.fits_cuda("1GiB,context=0")
def test_has_another_marker():
    take(16 * MIB)


@pytest.mark.fits_cuda("1GiB,context=0")
def test_measures(cuda_memory):
    cuda_memory(take, 16 * MIB)


@pytest.mark.fits_cuda("1GiB,context=0,memory=values")
def test_computes():
    assert (torch().ones(3, device="cuda") * 2).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.fits_cuda("1GiB,context=0")
def test_fails_by_itself():
    assert take(16 * MIB).numel() == 17 * MIB


@pytest.mark.xfail(strict=True)
@pytest.mark.fits_cuda("128MiB,context=0")
def test_is_expected_to_fail():
    take(150 * MIB)


@pytest.mark.fits_cuda("1GiB,context=0")
def test_skips_itself():
    pytest.skip("there is nothing to do")


@pytest.mark.fits_cuda("1GiB,context=0")
class TestOfUnittest(unittest.TestCase):
    def test_case(self):
        take(16 * MIB)


@pytest.mark.fits_cuda("1GiB,context=0")
def test_dies():
    os.kill(os.getpid(), 9)


@pytest.mark.fits_cuda("1GiB,context=0", seconds=4)
def test_waits_for_a_value():
    x = take(9999)  # of small values something is known
    while not x.max() > 0:
        x += 1


@pytest.fixture(scope="module")
def module_wide():
    with open("log", "a") as file:
        file.write("begins\n")
    yield
    with open("log", "a") as file:
        file.write("ends\n")


def test_before(module_wide):
    pass


@pytest.mark.fits_cuda("1GiB,context=0")
def test_between():
    pass


def test_runs_here(module_wide):
    assert "torch" not in sys.modules or not torch().cuda.is_initialized()


@pytest.mark.fits_cuda("1GiB,context=0")
def test_starts_a_process():
    code = "import torch; print(torch.cuda.get_device_properties(0).total_memory)"
    reported = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert int(reported) == 1024 * MIB


@pytest.mark.fits_cuda("12 apples")
def test_has_no_such_card():
    pass


@pytest.mark.fits_cuda("1GiB,2GiB")
def test_has_two_cards():
    pass


@pytest.mark.fits_cuda("1GiB", way="luck")
def test_has_no_such_way():
    pass
