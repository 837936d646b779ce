"""``oomph fit``: weights that a script makes on the CPU, whose bytes nobody writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from oomph.fitting.limit import Limit
from oomph.fitting.measuring import Place, Script, Way, measure
from oomph.fitting.process import weights
from oomph.fitting.process.launcher import Launcher
from oomph.fitting.process.record import Record
from support import GIB, MIB, Simulated
from torch import nn

card = Simulated("1GiB,context=0", None)
_left_out = False  # in the process of the card
HEAD = """
import copy
import resource

import torch
from torch import nn

"""
TRAINS = """
model = model.to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(2):
    model(torch.randn(8, model.in_features, device="cuda", dtype=model.weight.dtype))\\
        .square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
"""
SIDE = 16384  # 1 GiB in float32
OF_MEMORY = {
    "made": f"model = nn.Linear({SIDE}, {SIDE})",
    "made again": f"model = nn.Linear({SIDE}, {SIDE})\n"
    "nn.init.trunc_normal_(model.weight, std=0.02)\n"
    "model.weight.data.mul_(0.5).clamp_(-1, 1)",
    "converted": f"model = nn.Linear({SIDE}, {SIDE}).double().bfloat16()",
    "copied": f"model = copy.deepcopy(nn.Linear({SIDE}, {SIDE}))",
    "loaded": f"model, other = nn.Linear({SIDE}, {SIDE}), nn.Linear({SIDE}, {SIDE})\n"
    "model.load_state_dict(other.state_dict())",
}


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as found:
        yield found


@pytest.fixture
def record_of(launcher, tmp_path) -> Callable[[str], Record]:
    """Runs a program as ``oomph fit`` does, under PyTorch's allocator."""

    def record(text: str) -> Record:
        path = tmp_path / "train.py"
        path.write_text(HEAD + text)
        script = Script(str(path), variables={"OMP_NUM_THREADS": "1"})
        found = measure(launcher, script, Place("8GiB", Way.NATIVE), Limit().is_set)
        assert found.came_through, found.output
        return found

    return record


@pytest.mark.long
@pytest.mark.parametrize("how", OF_MEMORY)
def test_weights_on_the_cpu_take_no_memory_of_the_host(how, record_of):
    found = record_of(OF_MEMORY[how] + TRAINS)
    assert int(found.output.split()[-1]) < 1 * GIB
    weight_bytes = SIDE * SIDE * (2 if how == "converted" else 4)
    assert found.unwritten_bytes >= weight_bytes
    assert found.allocated_bytes >= 2 * weight_bytes  # and its gradient


FILLS = {
    "uniform": "nn.init.uniform_(model.weight)",
    "normal": "nn.init.normal_(model.weight)",
    "kaiming": "nn.init.kaiming_normal_(model.weight)",
    "half": "model = model.half(); nn.init.normal_(model.weight)",
    "bfloat16": "model = model.bfloat16(); model.weight.data.uniform_()",
    "truncated": "nn.init.trunc_normal_(model.weight)",
    "orthogonal": "nn.init.orthogonal_(model.weight)",
    "a generator": "model.weight.data.normal_(generator=torch.Generator())",
    "transposed": "model.weight.data.t().normal_()",
    "double": "model = model.double(); nn.init.normal_(model.weight)",
}


def numbers_after(fill: str) -> list[float]:
    """Random numbers of a program that has filled weights."""
    torch.manual_seed(3)
    torch.rand(7)
    model = nn.Linear(700, 611)  # no multiple of what is drawn at a time
    exec(FILLS[fill], {"nn": nn, "torch": torch, "model": model})
    return [*torch.rand(3).tolist(), *torch.randn(40).tolist()]


@card
def numbers_where_weights_are_left_out(fill: str) -> list[float]:
    global _left_out
    if not _left_out:
        weights.leave_out()
        _left_out = True
    before = weights.unwritten_bytes()
    numbers = numbers_after(fill)
    assert weights.unwritten_bytes() >= before + 700 * 611 * 4
    return numbers


@pytest.mark.parametrize("fill", FILLS)
def test_random_numbers_that_follow_are_the_same(fill):
    assert numbers_where_weights_are_left_out(fill) == numbers_after(fill)


READS = {
    "of weights": "assert model.weight.std() > 0.001",
    "of what was loaded": "other = nn.Linear(1024, 1024)\n"
    "other.load_state_dict(model.state_dict())\n"
    "assert torch.equal(other.weight, model.weight) and other.weight.any()",
    "and ends": "if not model.weight.any(): raise SystemExit('no weights')",
}


@pytest.mark.parametrize("read", READS)
def test_a_script_that_needs_their_values_has_them(read, record_of):
    text = f"model = nn.Linear(1024, 1024)\n{READS[read]}" + TRAINS
    found = record_of(text)
    assert found.unwritten_bytes == 0
    assert found.allocated_bytes >= 2 * 4 * MIB


def test_what_is_no_weight_is_written(record_of):
    text = (
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.empty(1024, 1024))\n"
        "        self.register_buffer('table', torch.arange(1 << 20))\n"
        "model = Model()\n"
        "data = torch.empty(1 << 20).normal_()\n"
        "lengths = torch.empty(1 << 20, dtype=torch.long).random_(1, 9)\n"
        "print(data.std().item() > 0.9, lengths.min().item(), lengths.max().item(),"
        " model.table.sum().item() == (1 << 19) * ((1 << 20) - 1))\n"
        "torch.cuda.init()"
    )
    found = record_of(text)
    assert found.output == "True 1 8 True"
