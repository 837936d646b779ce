"""Does a long training on a card that is always short leave anything behind?"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support import MIB, ROOT, environment

STEPS = 20_000
HALF = 5_000  # steps of which the last 10,000 are compared
# What the last half may have more than the half before. What is counted may not grow
# at all. Where Python and malloc have a part, less than one object in a hundred steps,
# and less than the smallest block of malloc's (32 bytes) in each: what it has handed
# out is exact, while resident memory takes a step when a part of it that was there is
# touched for the first time (1.6 MiB, once in 20,000 steps).
LIMITS = {
    "record_bytes": 0,
    "handles": 0,
    "mappings": 0,
    "reservations": 0,
    "events": 0,
    "streams": 0,
    "pinned_bytes": 0,
    "host_bytes": 0,
    "allocated_bytes": 0,
    "file_descriptors": 0,
    "threads": 0,
    "maps": 5,
    "objects": HALF // 100,
    "entries": HALF // 100,
    "malloc_bytes": 30 * HALF,
    "rss_bytes": 4 * MIB,
    "address_bytes": MIB,
}


@pytest.fixture(scope="module")
def samples() -> list[dict[str, float]]:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "endurance.py", "--steps", str(STEPS)],
        env=environment(
            OOMPH_SIMULATE="64MiB,context=0",
            OOMPH_CONF="reserve:0,host_limit:512MiB",
            OMP_NUM_THREADS="1",
            CUBLAS_WORKSPACE_CONFIG=":16:8",  # else the card is full of workspaces
            CUBLASLT_WORKSPACE_SIZE="64",
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_card_is_short_to_the_end(samples):
    before, after = samples[-2:]
    assert after["step"] == STEPS
    assert after["rescues"] > before["rescues"]
    assert after["sent_bytes"] > before["sent_bytes"]
    assert after["misuses"] == 0


@pytest.mark.parametrize("what", LIMITS)
def test_a_long_training_leaves_nothing_behind(figure, samples, what):
    of_half = {
        end: max(s[what] for s in samples if end - HALF < s["step"] <= end)
        for end in (STEPS - HALF, STEPS)
    }
    before, after = of_half.values()
    figure(
        name=f"growth in the last {HALF} of {STEPS} steps, {what}",
        value=after - before,
        limit=LIMITS[what],
        unit="bytes" if what.endswith("bytes") else "of them",
        kind="deterministic" if LIMITS[what] == 0 else "paired",
        how=f"at most {before} in the {HALF} steps before, {after} then; a small MLP, "
        f"every {samples[1]['step'] - samples[0]['step']} steps alike, "
        f"{samples[-1]['rescues']:.0f} rescues, "
        f"{samples[-1]['sent_bytes'] / 2**30:.0f} GiB sent ahead of need",
    )
