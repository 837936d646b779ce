"""Programs that capture their network finish on cards that are too small for them.

Room for a capture is made before it begins: what rests between steps leaves, and what
is missing still is ready on the host.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest
from support import MIB, Result, Simulated, execute

KINDS = ["layers", "attention", "step", "callables"]
CARD = "4GiB,context=0"
natively = Simulated(f"{CARD},memory=values", None)
computing = Simulated(f"{CARD},memory=values", "reserve:0")
sizing = Simulated(f"{CARD},memory=none", "reserve:0")


def run_alone(kind: str, limit_bytes: int, *settings: str) -> Result:
    """Runs a program of captured.py in a process that has run none yet."""
    conf = ",".join(("reserve:0", f"device_limit:{limit_bytes}", *settings))
    program = Path(__file__).with_name("captured.py")
    return execute(
        sys.executable, program, kind, card=f"{CARD},memory=values", conf=conf
    )


@functools.cache
def wanted(kind: str) -> dict:
    """What a program of captured.py gives with PyTorch's allocator and room."""
    return natively.call("captured", "run", kind)


@pytest.mark.long
@pytest.mark.parametrize("times", [1.2, 2.5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_card_too_small_for_a_captured_network_gives_the_same_values(kind, times):
    limit_bytes = int(wanted(kind)["allocated"] / times)
    found = computing.call("captured", "run", kind, limit_bytes)
    assert found["digest"] == wanted(kind)["digest"]
    assert found["graphs"] == wanted(kind)["graphs"]
    assert found["graphs"] >= 2 or kind in ("step", "callables")
    assert found["to_host"] > 0


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_alone_finish_too(kind):
    limit_bytes = int(wanted(kind)["allocated"] / 2.5)
    found = sizing.call("captured", "run", kind, limit_bytes)
    assert found["graphs"] == wanted(kind)["graphs"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_fits_pays_nothing(kind):
    done = run_alone(kind, wanted(kind)["reserved"])
    assert done.code == 0, done.err
    found = json.loads(done.out.splitlines()[-1])
    assert found["digest"] == wanted(kind)["digest"]
    costs = ("evicted_bytes", "host_bytes_peak", "swap_drains", "rescues")
    assert [found[name] for name in costs] == [0, 0, 0, 0]


@pytest.mark.long
def test_without_offload_the_error_says_so():
    limit_bytes = int(wanted("layers")["allocated"] / 1.6)
    failed = run_alone("layers", limit_bytes, "offload:off")
    assert failed.code != 0
    refusal = "offload is off (OOMPH_CONF=offload:on-oom continues in CPU memory)"
    assert refusal in failed.err


@pytest.mark.long
def test_where_the_host_has_no_room_either_the_error_says_what_helps():
    limit_bytes = int(wanted("layers")["allocated"] / 1.2)
    host = (f"host_limit:{40 * MIB}", "host_ahead:0")
    failed = run_alone("layers", limit_bytes, *host)
    assert failed.code != 0
    assert "torch.OutOfMemoryError" in failed.err
    assert "oomph.evict" in failed.err or "host_limit is 40.00 MiB" in failed.err
