"""The GPU's generators determine what is drawn, and draw what the CPU's do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support import Simulated
from torch import nn
from torch.utils.checkpoint import checkpoint

CARD = "256MiB,context=0,memory=values,devices=2"
simulated = Simulated(CARD, None)

Draw = Callable[[str], torch.Tensor]

DRAWS: dict[str, Draw] = {
    "bernoulli": lambda d: torch.bernoulli(torch.full((50,), 0.3, device=d)),
    "dropout": lambda d: F.dropout(torch.ones(50, device=d), 0.4),
    "dropout2d": lambda d: F.dropout2d(torch.ones(5, 5, 2, 2, device=d), 0.4),
    "exponential": lambda d: torch.empty(50, device=d).exponential_(),
    "multinomial": lambda d: torch.multinomial(torch.ones(50, device=d), 20),
    "normal": lambda d: torch.normal(torch.zeros(50, device=d), 2.0),
    "rand": lambda d: torch.rand(50, device=d),
    "randint": lambda d: torch.randint(0, 1000, (50,), device=d),
    "randn": lambda d: torch.randn(7, 9, device=d),
    "randn_half": lambda d: torch.randn(50, device=d, dtype=torch.bfloat16),
    "randperm": lambda d: torch.randperm(50, device=d),
    "replaced": lambda d: torch.multinomial(torch.ones(9, device=d), 20, True),
    "rrelu": lambda d: F.rrelu(-torch.ones(50, device=d), training=True),
    "uniform": lambda d: torch.empty(50, device=d).uniform_(-1, 1),
}


def draw(device: str = "cuda", **options: torch.Generator) -> list[float]:
    return torch.randn(5, device=device, **options).tolist()


@pytest.mark.parametrize("kind", DRAWS)
@simulated
def test_a_seeded_gpu_draws_what_the_cpu_draws(kind):
    torch.manual_seed(11)
    wanted = [DRAWS[kind]("cpu") for _ in range(3)]
    torch.manual_seed(11)
    found = [DRAWS[kind]("cuda").cpu() for _ in range(3)]
    assert [w.tolist() for w in wanted] == [f.tolist() for f in found]
    assert wanted[0].tolist() != wanted[1].tolist()


@simulated
def test_one_draw_after_the_other_is_that_of_the_cpu():
    torch.manual_seed(12)
    wanted = [each("cpu").tolist() for each in DRAWS.values()]
    torch.manual_seed(12)
    assert [each("cuda").tolist() for each in DRAWS.values()] == wanted


@simulated
def test_drawing_on_the_gpu_leaves_the_cpus_generator_alone():
    torch.manual_seed(13)
    wanted = draw("cpu")
    torch.manual_seed(13)
    for each in DRAWS.values():
        each("cuda")
    assert draw("cpu") == wanted


@simulated
def test_a_state_that_is_set_again_draws_again():
    torch.cuda.manual_seed(14)
    draw()
    state = torch.cuda.get_rng_state()
    first = [draw(), draw()]
    torch.cuda.set_rng_state(state)
    assert [draw(), draw()] == first
    assert first[0] != first[1]


@simulated
def test_a_seed_determines_what_is_drawn():
    torch.cuda.manual_seed(15)
    first = draw()
    torch.cuda.manual_seed(16)
    assert draw() != first
    torch.cuda.manual_seed(15)
    assert draw() == first


@simulated
def test_a_fork_is_without_effect():
    torch.manual_seed(17)
    wanted = [draw(), draw()]
    torch.manual_seed(17)
    found = [draw()]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        draw()
    assert [*found, draw()] == wanted


@simulated
def test_generators_of_ones_own_do_not_meet():
    a, b = (torch.Generator("cuda").manual_seed(18) for _ in range(2))
    on_cpu = torch.Generator().manual_seed(18)
    wanted = [draw("cpu", generator=on_cpu), draw("cpu", generator=on_cpu)]
    first = draw(generator=a)
    torch.rand(1000, device="cuda", generator=b)  # another amount, from the same seed
    assert [first, draw(generator=a)] == wanted


@simulated
def test_a_generator_gives_and_takes_its_state():
    a, b = torch.Generator("cuda").manual_seed(19), torch.Generator("cuda")
    draw(generator=a)
    b.set_state(a.get_state())
    assert draw(generator=b) == draw(generator=a)


@simulated
def test_each_device_has_its_generator():
    torch.manual_seed(20)
    first = draw("cuda:0")
    draw("cuda:0")
    assert draw("cuda:1") == first


@simulated
def test_an_offset_that_was_never_reached_draws_something_of_its_own():
    def at(offset: int) -> list[float]:
        generator = torch.Generator("cuda").manual_seed(21)
        generator.set_offset(offset)
        return draw(generator=generator)

    assert at(400) == at(400)
    assert at(400) != at(404)


@simulated
def test_a_state_that_is_forgotten_is_not_drawn_from_otherwise():
    generator = torch.Generator("cuda").manual_seed(24)
    draw(generator=generator)
    state = generator.get_state()
    for _ in range(5000):  # more than are kept
        torch.rand(1, device="cuda", generator=generator)
    generator.set_state(state)
    with pytest.raises(RuntimeError, match="cannot be drawn again"):
        draw(generator=generator)
    generator.manual_seed(24)
    draw(generator=generator)


def gradients(
    device: str, use_reentrant: bool | None, **options: bool
) -> list[list[float]]:
    """Those of two layers with dropout, run again in backward or not (None)."""
    torch.manual_seed(22)
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.2))
    layer = layer.to(device)
    x = torch.randn(4, 8).to(device).requires_grad_()
    torch.manual_seed(23)
    y = x
    for _ in range(2):
        if use_reentrant is None:
            y = layer(y)
        else:
            y = checkpoint(layer, y, use_reentrant=use_reentrant, **options)
    y.sum().backward()
    return [t.grad.tolist() for t in (x, *layer.parameters())]


@simulated
def test_a_checkpoint_that_keeps_no_state_draws_anew():
    assert gradients("cuda", False, preserve_rng_state=False) != gradients("cpu", None)


@pytest.mark.parametrize("use_reentrant", [False, True])
@simulated
def test_a_checkpoint_draws_again_what_it_drew(use_reentrant):
    wanted = gradients("cpu", None)
    assert gradients("cuda", None) == wanted
    assert gradients("cuda", use_reentrant) == wanted
