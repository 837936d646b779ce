"""Mistakes can still be put into the code: ``python tests/mutations`` does, and asks
the tests."""

from __future__ import annotations

from mutations.table import MUTATIONS
from support import ROOT


def test_every_mutation_can_still_be_planted():
    times = {
        name: (ROOT / mutation.file).read_text().count(mutation.old)
        for name, mutation in MUTATIONS.items()
    }
    assert times == dict.fromkeys(MUTATIONS, 1)
