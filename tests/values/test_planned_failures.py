"""Each driver call fails in turn where a step sends, fetches and stages."""

from __future__ import annotations

import gc

import pytest
import test_failures
from support import KIB, Simulated
from test_failures import ERRORS, each_call_fails_once
from torch import nn

planned = Simulated(
    "64MiB,context=0,memory=values,cc=8.6,host=2GiB",
    "reserve:0,host_limit:1GiB,host_ahead:0",
)


class Training(test_failures.Training):
    """Its activations leave; so has the optimizer's state, which is staged."""

    rows = 256

    def __init__(self, device: str) -> None:
        if device == "cuda":
            from oomph import planner
            from oomph.offload.transfer import Link

            planner.start(always=True)
            self.link = Link(0)
        super().__init__(device)

    def make_network(self) -> nn.Sequential:
        layers = [nn.Linear(64, 5120), nn.GELU(), nn.Linear(5120, 64), nn.GELU()]
        return nn.Sequential(*layers)

    def begin(self) -> None:
        super().begin()
        if self.device == "cuda":
            import oomph
            from oomph.offload import optimizers

            # The planner ends it after a step that would have fitted without.
            optimizers.start(0, optimizers.Plan(self.link, 512 * KIB))
            states = self.optimizer.state.values()
            oomph.evict([v for s in states for v in s.values() if v.is_cuda])
            gc.collect()
            assert oomph._C.stats(0)["buffer_bytes"] == 0


@pytest.mark.long
@pytest.mark.parametrize("error", ERRORS)
@planned
def test_a_step_that_sends_and_stages_survives_the_failure_of_any_call(error):
    import oomph
    from oomph.offload import optimizers, staging

    staged = 0
    fetch = staging.Pipeline._fetch

    def count(self, *arguments):
        nonlocal staged
        found = fetch(self, *arguments)
        staged += isinstance(found, staging._Staged)
        return found

    staging.Pipeline._fetch = count
    try:
        each_call_fails_once(ERRORS[error], Training)
        assert staged > 100, staged  # in pieces, in most of the steps
        assert oomph.stats()["sent_bytes"] > 0
        assert oomph.stats()["fetched_bytes"] > 0
    finally:
        staging.Pipeline._fetch = fetch
        optimizers.stop(0)
