"""Random programs, from seeds that nobody has seen.

``python tests/campaign`` hunts as long as one likes, and repeats what was found here:
``--seed N``. With OOMPH_CAMPAIGN_SECONDS=120 the tests hunt for two minutes.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time

import pytest
from campaign import hunt, planted

SECONDS = float(os.environ.get("OOMPH_CAMPAIGN_SECONDS", "0"))


@pytest.mark.skipif(SECONDS <= 0, reason="OOMPH_CAMPAIGN_SECONDS is not set")
def test_random_programs_do_under_oomph_what_they_do_natively():
    first = random.SystemRandom().randrange(10**9) * hunt.BLOCK
    print(f"seeds from {first}")
    deadline = time.time() + SECONDS
    count = 0
    for seed, found in hunt.check_each(itertools.count(first), deadline, shrinks=True):
        count += 1
        if found:
            pytest.fail(f"seed {seed}: {found[1]}", pytrace=False)
    assert count > 0


@pytest.mark.parametrize("name", planted.PLANTS)
def test_bugs_can_still_be_planted(name, tmp_path):
    plant = planted.PLANTS[name]
    for file, _, _ in plant.changes:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(planted.ROOT / file, tmp_path / file)
    plant.put(tmp_path)
    for file, _, new in plant.changes:
        assert new in (tmp_path / file).read_text()
