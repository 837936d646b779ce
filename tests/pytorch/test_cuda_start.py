"""How a process comes to use CUDA: after PyTorch's test_cuda.py and two neighbours,
test_cuda_primary_ctx.py and test_cuda_nvml_based_avail.py.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from both import CARD, ways
from support import execute


@functools.cache
def found(conf: str | None) -> dict[str, Any]:
    """What start.py says."""
    program = Path(__file__).with_name("start.py")
    done = execute(sys.executable, program, card=f"{CARD},devices=2", conf=conf)
    assert done.code == 0, done.said
    return json.loads(done.out)


@ways()
def test_lazy_init(conf):
    """``import torch`` makes no call of the driver, nor fixes what is visible."""
    assert found(conf)["driver_status"] == 3
    assert found(conf)["invisible"] == 0


@ways()
def test_device_count_not_cached_pre_init(conf):
    assert found(conf)["visible_later"] == [2, 1]


@ways()
def test_is_pinned_no_context(conf):
    assert found(conf)["pinned_no_context"] == 1


@ways()
def test_no_triton_on_import(conf):
    assert found(conf)["triton_imported"] is False


@ways()
def test_pinned_memory_use_background_threads(conf):
    assert found(conf)["pinned_in_background"] is True


@ways()
def test_cuda_init_race(conf):
    assert found(conf)["init_race"] == {"0": 1, "1": 1}


@pytest.mark.parametrize("nvml", [True, False])
@pytest.mark.parametrize("by_nvml", ["1", "0", "unset"])
@ways()
def test_cuda_is_available(conf, by_nvml, nvml):
    """Only the driver's library for management leaves the driver as it is."""
    bad = found(conf)[f"bad_fork {by_nvml} {nvml}"]
    assert bad is not (by_nvml == "1" and nvml)


def check_contexts(conf: str | None, after: str) -> None:
    contexts = found(conf)["contexts"]
    assert contexts["begin"] == [False, False]
    assert contexts["made"] == contexts[after] == [False, True]


@ways()
def test_str_repr(conf):
    check_contexts(conf, "str_repr")


@ways()
def test_copy(conf):
    check_contexts(conf, "copy")


@ways()
def test_pin_memory(conf):
    check_contexts(conf, "pin_memory")
