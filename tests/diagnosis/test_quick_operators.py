"""Operators of a step that runs again: they give what PyTorch says that they give."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from support import Simulated
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

card = Simulated("1GiB,context=0", "offload:off")
SAMPLES_MAX = 2  # of each operator


def described(made: Any, given: list[torch.Tensor]) -> list[Any]:
    """What a result is, and of which arguments it is a part."""
    found: list[Any] = [type(made)]
    for value in made if isinstance(made, list | tuple) else [made]:
        if not isinstance(value, FakeTensor):
            found.append(value)
            continue
        storage = value.untyped_storage()
        of = [i for i, g in enumerate(given) if g.untyped_storage() is storage]
        is_one = [i for i, g in enumerate(given) if g is value]
        # Where there is but one step, or none, PyTorch's own two ways differ in it.
        steps = [value.stride(i) for i, size in enumerate(value.shape) if size > 1]
        layout = steps if value.numel() else [], value.storage_offset()
        what = value.dtype, value.device, storage.nbytes()
        found += [value.shape, layout, what, of, is_one]
    return found


class Compared(TorchDispatchMode):
    """Runs each operator as PyTorch does, and quickly, twice."""

    def __init__(self, fakes: FakeTensorMode) -> None:
        from oomph.replay.operators.quick import Quick

        super().__init__()
        self.quick = Quick(fakes)
        self.differ: set[str] = set()
        self.kinds: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        from oomph.replay.operators import quick

        kwargs = kwargs or {}
        given = quick.tensors_among((*args, *kwargs.values()))
        made = func(*args, **kwargs)
        wanted = described(made, given)
        kind = quick._kind(func).name
        for _ in range(2 if kind != "OTHER" else 0):
            if described(self.quick.run(func, args, kwargs), given) != wanted:
                self.differ.add(str(func))
        self.kinds[kind] += 1
        return made


@pytest.mark.long
@card
def test_results_are_those_that_pytorch_gives() -> None:
    import logging
    import warnings

    from op_database import OPERATORS
    from torch.utils import _pytree as pytree

    logging.disable()
    warnings.simplefilter("ignore")
    fakes = FakeTensorMode()
    compared = Compared(fakes)
    refused = 0

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return fakes.from_tensor(value)

    for op in OPERATORS.values():
        samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))
        for sample in samples[:: -(-len(samples) // SAMPLES_MAX) or 1]:
            try:
                given = sample.input, sample.args, sample.kwargs
                first, others, named = pytree.tree_map(fake, given)
                with fakes, compared:
                    op(first, *others, **named)
            except Exception:  # those that need values, among others
                refused += 1
    assert not compared.differ
    counts = [compared.kinds[kind] for kind in ("MADE", "PART", "ITSELF")]
    assert all(map(int.__ge__, counts, (1500, 500, 50))), counts
    assert refused < 100
