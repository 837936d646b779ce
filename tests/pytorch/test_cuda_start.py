"""How a process comes to use CUDA: after PyTorch's test_cuda.py and two neighbours,
test_cuda_primary_ctx.py and test_cuda_nvml_based_avail.py.
"""

from __future__ import annotations

import functools
import json

import pytest
from both import CARD, ways
from support import run


def said(code: str, conf: str | None, card: str = CARD) -> str:
    done = run(code, card=card, conf=conf)
    assert done.code == 0, done.said
    return done.out.strip()


@ways()
def test_lazy_init(conf):
    """``import torch`` makes no call of the driver, nor fixes what is visible.

    PyTorch's sees to it that the driver is not initialised: 3 is what it says then.
    """
    code = """
        import ctypes, os, torch
        count = ctypes.c_int(-1)
        print(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)))
        os.environ["CUDA_VISIBLE_DEVICES"] = "32"
        print(torch.cuda.device_count())
    """
    assert said(code, conf) == "3\n0"


@ways()
def test_device_count_not_cached_pre_init(conf):
    code = """
        import os, torch
        print(torch.cuda.device_count())
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        print(torch.cuda.device_count())
        torch.empty(10, device="cuda")
    """
    assert said(code, conf, f"{CARD},devices=2") == "2\n1"


@ways()
def test_is_pinned_no_context(conf):
    """Asking whether memory is pinned leaves a later fork free to use CUDA."""
    code = """
        import multiprocessing, torch
        def work(end):
            torch.randn(10).is_pinned()
            end.send(torch.ones(10, device="cuda")[0].item())
        torch.randn(10).is_pinned()
        ours, theirs = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=work, args=(theirs,))
        process.start()
        print(ours.recv())
        process.join()
    """
    assert said(code, conf) == "1.0"


@functools.cache
def contexts(conf: str | None) -> dict[str, list[bool]]:
    """Which devices have a context after what; one process tells of all."""
    code = """
        import json, torch
        def contexts():
            return [torch._C._cuda_hasPrimaryContext(device) for device in (0, 1)]
        found = {"begin": contexts()}
        x = torch.ones(1, device="cuda:1")
        found["made"] = contexts()
        str(x), repr(x)
        found["str_repr"] = contexts()
        torch.ones(1).copy_(x)
        found["copy"] = contexts()
        assert not x.is_pinned()
        for make in (torch.zeros, torch.empty, torch.randn):
            assert make(3, pin_memory=True).is_pinned()
        y = torch.randn(3).pin_memory()
        assert y.is_pinned() and y.pin_memory().is_pinned()
        found["pin_memory"] = contexts()
        print(json.dumps(found))
    """
    return json.loads(said(code, conf, f"{CARD},devices=2"))


def check_contexts(conf: str | None, after: str) -> None:
    found = contexts(conf)
    assert found["begin"] == [False, False]
    assert found["made"] == found[after] == [False, True]


@ways()
def test_str_repr(conf):
    check_contexts(conf, "str_repr")


@ways()
def test_copy(conf):
    check_contexts(conf, "copy")


@ways()
def test_pin_memory(conf):
    check_contexts(conf, "pin_memory")


@functools.cache
def forks(conf: str | None) -> dict[str, bool]:
    """Whether a fork may not use CUDA after it was asked whether there is any."""
    code = """
        import json, multiprocessing, os, torch
        from unittest.mock import patch
        context = multiprocessing.get_context("fork")
        def is_bad(end):
            torch.cuda.is_available()
            end.send(torch.cuda._is_in_bad_fork())
        def fork(target, *args):
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(theirs, *args))
            process.start()
            found = ours.recv()
            process.join()
            return found
        def ask(end, by_nvml, nvml):
            torch.cuda.device_count.cache_clear() if hasattr(
                torch.cuda.device_count, "cache_clear") else None
            if by_nvml is not None:
                os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = by_nvml
            if nvml:
                torch.cuda.is_available()
            else:
                with patch.object(torch.cuda, "_device_count_nvml", return_value=-1):
                    torch.cuda.is_available()
            end.send(fork(is_bad))
        found = {}
        for by_nvml in ("1", "0", None):
            for nvml in (True, False):
                found[f"{by_nvml} {nvml}"] = fork(ask, by_nvml, nvml)
        print(json.dumps(found))
    """
    return json.loads(said(code, conf))


@pytest.mark.parametrize("nvml", [True, False])
@pytest.mark.parametrize("by_nvml", ["1", "0", None])
@ways()
def test_cuda_is_available(conf, by_nvml, nvml):
    """Only the driver's library for management leaves the driver as it is."""
    assert forks(conf)[f"{by_nvml} {nvml}"] is not (by_nvml == "1" and nvml)
