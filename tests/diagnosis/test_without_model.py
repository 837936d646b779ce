"""What the error predicts where no model is on the device, or one is being made."""

from __future__ import annotations

import math
import sys
import textwrap

import pytest
import torch
from forecasts import predicted, step_bytes
from oomph.diagnosis import forecast
from support import Simulated, execute
from torch import nn
from torch.utils.checkpoint import checkpoint

forecast.SECONDS_IN_ALL = math.inf
card = Simulated("4GiB,context=0", "offload:off,reserve:0,error:full")


ALONE = """
    x = torch.ones(8192, 16, device='cuda')
    distances = torch.cdist(x, x)
    torch.exp(-distances).topk(8).indices
"""
FUNCTION = """
    def neighbours(x):
        distances = torch.cdist(x, x)
        return torch.exp(-distances).topk(8).indices

    x = torch.ones(8192, 16, device='cuda')
    indices = neighbours(x)
"""
BEFORE_A_TRAINING = """
    def neighbours(x):
        distances = torch.cdist(x, x)
        return torch.exp(-distances).topk(8).indices

    def main():
        x = torch.ones(8192, 16, device='cuda')
        with torch.no_grad():
            indices = neighbours(x)
        model = torch.nn.Linear(16, 16, device='cuda')
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(x)[indices].mean().backward()
            optimizer.step()

    main()
"""


@pytest.mark.parametrize("body", [ALONE, FUNCTION, BEFORE_A_TRAINING])
def test_what_calls_no_model_is_predicted(body, tmp_path):
    program = tmp_path / "script.py"
    end = "\nimport sys\nprint(torch.cuda.max_memory_allocated(), file=sys.stderr)\n"
    program.write_text("import torch\n" + textwrap.dedent(body) + end)
    conf = "offload:off,reserve:0,error:full"
    done = execute(sys.executable, program, card="4GiB,context=0", conf=conf)
    true = int(done.err.split()[-1])
    conf += f",device_limit:{int(0.6 * true)}"
    text = execute(sys.executable, program, card="4GiB,context=0", conf=conf).err
    assert step_bytes(text) == pytest.approx(true, rel=0.01)
    assert "accumulating gradients" not in text


class Layers(nn.Sequential):
    def __init__(self, count: int) -> None:
        super().__init__(*(nn.Linear(1024, 1024) for _ in range(count)))


@card
@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_a_model_that_finds_no_room_is_predicted_with_what_follows(where):
    def loaded(count: int) -> nn.Module:
        with torch.device(where):
            model = Layers(count)
        return model.cuda().eval()

    def evaluate() -> None:
        small = loaded(8)
        large = loaded(24)
        with torch.no_grad():
            for _ in range(2):
                x = torch.ones(8192, 1024, device="cuda")
                scores = small(x), large(x)
        print(scores[0].bfloat16().tolist()[:0])

    text = predicted(evaluate, 0.4)
    assert "parameters in bfloat16" in text


@card
def test_what_a_loop_is_given_is_not_less_where_it_takes_fewer_rows():
    def compute() -> None:
        given = torch.ones(4096, 4096, device="cuda")
        made = torch.zeros_like(given)
        for i in range(3):
            made += (given + i) * 2

    with torch.no_grad():
        assert "rows at a time" not in predicted(compute, 0.8)


@card
def test_the_results_of_several_batches_joined_are_no_batch():
    """A smaller batch comes more often, so what is joined is as long."""
    model = nn.Linear(64, 64, device="cuda").eval()

    @torch.no_grad()
    def evaluate() -> None:
        found = [model(torch.ones(512, 64, device="cuda")) for _ in range(16)]
        features = torch.cat(found)
        (features @ features.T).argsort(1)[:, :8].clone()

    text = predicted(evaluate, 0.5)
    assert "8192 ->" not in text
    assert "batch 512" not in text


@card
def test_what_is_joined_of_one_batch_shrinks_with_it():
    model = nn.Linear(64, 64, device="cuda").eval()

    @torch.no_grad()
    def evaluate() -> None:
        for _ in range(2):
            crops = [torch.ones(512, 64, device="cuda") for _ in range(8)]
            features = torch.cat([model(crop) for crop in crops])
            (features @ features.T).argsort(1)[:, :8].clone()

    assert "batch 512 -> 256" in predicted(evaluate, 0.5)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])  # no state, half of it, all of it
def test_states_that_go_to_the_cpu_with_the_error_count_once(share, tmp_path):
    """As Lightning moves them, before anybody reads the error."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import torch

def move(states):
    for state in states.values():
        state.update({name: value.cpu() for name, value in state.items()})

model = torch.nn.Linear(8192, 2048, bias=False).cuda()
optimizer = torch.optim.Adam(model.parameters())
try:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(8, 8192, device="cuda")).sum().backward()
        optimizer.step()
except torch.OutOfMemoryError as error:
    move(optimizer.state)
    print(error)
print(torch.cuda.max_memory_allocated())
"""
    )
    card = "1GiB,context=0"
    true = int(execute(sys.executable, program, card=card).out)
    conf = f"offload:off,reserve:0,error:full,device_limit:{int(share * true)}"
    text = execute(sys.executable, program, card=card, conf=conf).out
    assert step_bytes(text) == pytest.approx(true, rel=0.01)


class Waves(nn.Module):
    """Keeps much more for backward than its forward has at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 1024), nn.Linear(1024, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        for _ in range(6):
            h = h.sin()
        return self.down(h)


@card
@pytest.mark.parametrize("fraction", [0.4, 0.6, 0.9])
def test_a_call_that_runs_again_in_backward_and_finds_no_room_is_predicted(fraction):
    """Autograd's thread reads the error's text before the caller has the error."""
    blocks = nn.ModuleList(Waves() for _ in range(3)).cuda()
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)

    def train() -> None:
        for _ in range(2):
            x = torch.ones(8192, 64, device="cuda")
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=False)
            optimizer.zero_grad()
            x.square().mean().backward()
            optimizer.step()

    text = predicted(train, fraction, within=0.02)
    assert "What helps" in text
