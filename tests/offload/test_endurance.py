"""A training on a card that is always short leaves nothing behind.

benchmarks/test_endurance.py looks longer, and at more.
"""

from __future__ import annotations

import json
import sys

import pytest
from support import ROOT, execute

COUNTED = (
    *("record_bytes", "handles", "mappings", "reservations", "streams"),
    *("pinned_bytes", "host_bytes", "allocated_bytes", "file_descriptors", "threads"),
)


@pytest.mark.long
def test_steps_that_are_alike_leave_nothing_behind():
    done = execute(
        *(sys.executable, ROOT / "benchmarks" / "endurance.py"),
        *("--steps", "750", "--period", "250"),
        card="64MiB,context=0",
        conf="reserve:0,host_limit:512MiB",
        CUBLAS_WORKSPACE_CONFIG=":16:8",
        CUBLASLT_WORKSPACE_SIZE="64",
    )
    assert done.code == 0, done.said
    _, before, after = map(json.loads, done.out.splitlines())
    assert after["rescues"] > before["rescues"]
    assert after["sent_bytes"] > before["sent_bytes"]
    assert {k: after[k] for k in COUNTED} == {k: before[k] for k in COUNTED}
    assert abs(after["events"] - before["events"]) < 16  # kept for reuse
    assert abs(after["objects"] - before["objects"]) < 25
    assert after["malloc_bytes"] - before["malloc_bytes"] < 1 << 16
    assert after["misuses"] == 0
