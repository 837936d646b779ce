"""Optimizers that work piece by piece, their state on the host, change no bit."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from support import KIB, MIB, Simulated
from test_models import differences, fill_device
from torch import nn

card = Simulated(
    "256MiB,context=0,memory=values,cc=8.6,host=2GiB",
    "reserve:0,host_limit:1GiB",
)
PIECE_BYTES = 256 * KIB
STEPS = 3

# By a name: the class in torch.optim and its options.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Adam": ("Adam", {}),
    "Adam, one by one": ("Adam", {"foreach": False}),
    "AdamW": ("AdamW", {"weight_decay": 0.1}),
    "AdamW, amsgrad": ("AdamW", {"amsgrad": True, "maximize": True}),
    "AdamW, capturable": ("AdamW", {"capturable": True, "amsgrad": True}),
    "Adam, fused": ("Adam", {"fused": True, "amsgrad": True}),
    "AdamW, fused": ("AdamW", {"fused": True, "weight_decay": 0.1}),
    "SGD": ("SGD", {"weight_decay": 0.1}),
    "SGD, momentum": ("SGD", {"momentum": 0.9, "dampening": 0.1}),
    "SGD, nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "SGD, fused": ("SGD", {"fused": True, "momentum": 0.9}),
    "SGD, one by one": ("SGD", {"momentum": 0.9, "foreach": False}),
    "RMSprop": ("RMSprop", {}),
    "RMSprop, centered": ("RMSprop", {"momentum": 0.5, "centered": True}),
    "RMSprop, capturable": ("RMSprop", {"capturable": True}),
    "Adagrad": ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    "Adadelta": ("Adadelta", {"maximize": True}),
    "Adadelta, one by one": ("Adadelta", {"foreach": False}),
    "Adamax": ("Adamax", {"weight_decay": 0.1}),
    "Adamax, capturable": ("Adamax", {"capturable": True}),
    "ASGD": ("ASGD", {"t0": 1, "weight_decay": 0.1}),
    "ASGD, capturable": ("ASGD", {"t0": 1, "capturable": True}),
    "NAdam": ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "NAdam, capturable": ("NAdam", {"capturable": True}),
    "RAdam": ("RAdam", {"weight_decay": 0.1}),
    "RAdam, capturable": ("RAdam", {"capturable": True}),
    "Rprop": ("Rprop", {}),
    "Rprop, capturable": ("Rprop", {"capturable": True}),
}


@contextlib.contextmanager
def in_pieces(piece_bytes: int = PIECE_BYTES) -> Iterator[Any]:
    """Optimizers work piece by piece; gives the link that they use."""
    from oomph.offload import optimizers
    from oomph.offload.transfer import Link

    plan = optimizers.Plan(Link(0), piece_bytes)
    optimizers.start(0, plan)
    try:
        yield plan.link
    finally:
        optimizers.stop(0)


# ---- parameters of many shapes


def made(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def parameters(device: str) -> list[nn.Parameter]:
    """Larger than a piece and smaller, dense and not, alone and in one storage."""
    whole = made(600_000, seed=1).to(device)
    image = made(96, 64, 7, 7, seed=2).to(device, memory_format=torch.channels_last)
    tensors = [
        made(700, 1000, seed=3).to(device),
        image,
        made(1000, 300, seed=4).to(device).t(),
        made(1000, 600, seed=5).to(device)[:, ::2],  # with holes
        whole[:300_000].view(1000, 300),
        whole[300_000:],
        made(600, 1000, seed=6, dtype=torch.bfloat16).to(device),
        made(300, 600, seed=7, dtype=torch.complex64).to(device),
        made(seed=8).to(device),
        made(1, seed=9).to(device),
        made(33, seed=10).to(device),
        made(0, 4, seed=11).to(device),
    ]
    return [nn.Parameter(tensor) for tensor in tensors]


def gradient(parameter: torch.Tensor, seed: int, may_repeat: bool) -> torch.Tensor:
    """A gradient, of some parameters with its elements in other places."""
    found = made(*parameter.shape, seed=seed, dtype=parameter.dtype)
    found = found.to(parameter.device)
    if seed % 3 == 0 and found.dim() == 2:
        return found.t().contiguous().t()
    if seed % 3 == 1 and found.dim() == 2 and may_repeat:
        return found[:1].expand(found.shape)
    return torch.empty_like(parameter).copy_(found)  # as the parameter lies


@dataclass
class Training:
    """Parameters in two groups, an optimizer of them, and gradients by turns."""

    device: str
    name: str
    parameters: list[nn.Parameter] = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    taken: int = 0
    writes_gradients: bool = field(init=False)
    is_fused: bool = field(init=False)

    def __post_init__(self) -> None:
        name, options = OPTIMIZERS[self.name]
        if self.device == "cpu":
            options = {"foreach": True, **options}  # as on the GPU
        self.parameters = parameters(self.device)
        if "fused" in options:  # which take neither complex numbers nor holes
            from oomph.offload.staging import is_dense

            fit = [p for p in self.parameters if is_dense(p) and not p.is_complex()]
            self.parameters = fit
        self.is_fused = "fused" in options
        self.writes_gradients = "nesterov" in options
        groups = [
            {"params": self.parameters[::2], "lr": 0.1, "weight_decay": 0.05},
            {"params": self.parameters[1::2], "lr": 0.01},
        ]
        self.optimizer = getattr(torch.optim, name)(groups, **options)

    def step(self) -> None:
        for i, parameter in enumerate(self.parameters):
            if parameter.grad is None:  # else the last one is added to
                seed = 100 * self.taken + i
                grad = gradient(parameter, seed, not self.writes_gradients)
                if self.is_fused:  # which want all to lie alike
                    grad = torch.empty_like(parameter).copy_(grad)
                parameter.grad = grad.detach()
        self.optimizer.step()
        self.taken += 1
        for parameter in self.parameters[::2]:
            parameter.grad = None

    def state(self) -> list[torch.Tensor]:
        states = [self.optimizer.state[parameter] for parameter in self.parameters]
        kept = [v for state in states for v in state.values()]
        return [v for v in kept if isinstance(v, torch.Tensor)]

    def all(self) -> list[torch.Tensor]:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        return [*self.parameters, *gradients, *self.state()]

    def values(self) -> list[torch.Tensor]:
        found = [tensor.detach().cpu() for tensor in self.all()]
        return [torch.view_as_real(v) if v.is_complex() else v for v in found]


def evict(training: Training, kind: str) -> None:
    """Moves tensors of a training to the host."""
    import oomph

    on_card = [tensor.detach() for tensor in training.all() if tensor.is_cuda]
    if kind == "state":
        moving = [tensor for tensor in training.state() if tensor.is_cuda]
    elif kind == "all":
        moving = on_card
    else:  # some of all
        moving = on_card[::3]
    oomph.evict(moving)


def train(training: Training, kind: str = "") -> list[torch.Tensor]:
    """Some steps; each time but the first, some of it is moved to the host before."""
    for turn in range(STEPS):
        if turn > 0 and kind:
            evict(training, kind)
        training.step()
    return training.values()


@functools.cache
def reference(name: str) -> list[torch.Tensor]:
    """The values that PyTorch gives by itself."""
    options = OPTIMIZERS[name][1]
    only_on_gpu = options.get("capturable") or options.get("fused")
    return train(Training("cuda" if only_on_gpu else "cpu", name))


def check(name: str, kind: str) -> None:
    wanted = reference(name)
    with in_pieces() as link:
        assert differences(train(Training("cuda", name), kind), wanted) == []
        assert (link.back_bytes > 0) == (kind != "")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@card
def test_pieces_change_no_value(optimizer):
    check(optimizer, "")


@pytest.mark.parametrize("kind", ["all", "some"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@card
def test_what_is_on_the_host_gets_the_same_values(optimizer, kind):
    check(optimizer, kind)


@card
def test_a_gradient_that_is_a_conjugate_is_read_as_one():
    """Its bytes are not its values."""
    import oomph

    def steps(device: str) -> list[torch.Tensor]:
        weight = nn.Parameter(made(500, 600, seed=1, dtype=torch.complex64).to(device))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, foreach=True)
        for seed in range(STEPS):
            gradient = made(500, 600, seed=seed, dtype=torch.complex64).to(device)
            weight.grad = gradient.conj()
            if weight.is_cuda:
                oomph.evict([weight.detach(), gradient])
            optimizer.step()
        return [torch.view_as_real(weight.detach().cpu())]

    with in_pieces():
        assert differences(steps("cuda"), steps("cpu")) == []


# ---- what else a user may see


@card
def test_addresses_stay_and_versions_advance():
    from oomph.offload.staging import is_on_host

    with in_pieces():
        training = Training("cuda", "Adam")
        training.step()
        evict(training, "state")
        tensors = [*training.parameters, *training.state()]
        before = [(t.data_ptr(), t._version) for t in tensors]
        training.step()
        after = [*training.parameters, *training.state()]
        for (address, version), tensor in zip(before, after, strict=True):
            assert tensor.data_ptr() == address
            # PyTorch's own _foreach_lerp_ does not count on a GPU.
            is_counted = isinstance(tensor, nn.Parameter) or is_on_host(tensor)
            assert tensor._version > version or not is_counted or not tensor.numel()


@card
def test_what_is_only_read_keeps_its_version():
    with in_pieces():
        training = Training("cuda", "Adam")
        training.step()
        gradients = [p.grad for p in training.parameters if p.grad is not None]
        before = [g._version for g in gradients]
        evict(training, "all")
        training.step()
        assert [g._version for g in gradients] == before


@card
def test_temporary_tensors_are_as_small_as_pieces():
    import oomph

    weights = [nn.Parameter(made(1000, 1000, seed=i).cuda()) for i in range(8)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adam(weights)
    optimizer.step()

    def peak_bytes() -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        optimizer.step()
        return torch.cuda.max_memory_allocated() - before

    assert peak_bytes() >= 8 * weights[0].nbytes
    with in_pieces():
        assert peak_bytes() <= 3 * PIECE_BYTES
        state = [v for s in optimizer.state.values() for v in s.values() if v.is_cuda]
        oomph.evict(state)
        assert peak_bytes() <= (3 + 2 * 4 + 1) * PIECE_BYTES  # two lists, in 4 buffers


def functions() -> dict[tuple[str, str], Any]:
    """All functions of the modules of torch.optim."""
    names = {name.lower() for name, _ in OPTIMIZERS.values()}
    modules = {name: importlib.import_module(f"torch.optim.{name}") for name in names}
    return {
        (name, attribute): value
        for name, module in modules.items()
        for attribute, value in vars(module).items()
        if callable(value)
    }


@card
def test_pytorchs_functions_return_when_the_last_device_stops():
    from oomph.offload import optimizers

    before = functions()
    with in_pieces() as link:
        assert functions() != before
        optimizers.start(1, optimizers.Plan(link, PIECE_BYTES))
    assert functions() != before
    optimizers.stop(1)
    assert functions() == before


def scaled(device: str, **options: Any) -> list[torch.Tensor]:
    """Steps with a scaler of gradients, of which one is skipped."""
    import oomph

    weight = nn.Parameter(made(700, 1000, seed=1).to(device))
    optimizer = torch.optim.Adam([weight], lr=0.1, **options)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
    for turn in range(5):
        x = made(64, 700, seed=turn).to(device)
        loss = (x @ weight).square().mean() * (float("inf") if turn == 2 else 1.0)
        scaler.scale(loss).backward()
        if turn == 3:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if weight.is_cuda:
            state = optimizer.state[weight].values()
            oomph.evict([v for v in state if v.is_cuda and v.dim() > 0])
    state = [v.cpu() for v in optimizer.state[weight].values()]
    return [weight.detach().cpu(), torch.tensor(scaler.get_scale()), *state]


@card
def test_scaled_gradients_give_the_cpus_values():
    with in_pieces() as link:
        found = scaled("cuda", foreach=True)
        assert differences(found, scaled("cpu", foreach=True)) == []
        assert link.back_bytes > 0


@card
def test_scaled_gradients_that_a_fused_step_divides_give_the_same_values():
    wanted = scaled("cuda", fused=True)
    with in_pieces() as link:
        assert differences(scaled("cuda", fused=True), wanted) == []
        assert link.back_bytes > 0


def divided(kind: str) -> torch.Tensor:
    """A gradient after a fused step that divides it by its scale."""
    import oomph

    weight = nn.Parameter(made(1024, 1024, seed=1).cuda())
    weight.grad = made(1024, 1024, seed=2).cuda()
    optimizer = torch.optim.Adam([weight], lr=0.1, fused=True)
    optimizer.grad_scale = torch.tensor(4.0, device="cuda")
    optimizer.found_inf = torch.tensor(0.0, device="cuda")
    if kind:
        oomph.evict(weight.grad)
    optimizer.step()
    return weight.grad.cpu()


@card
def test_a_gradient_on_the_host_that_a_fused_step_divides_is_divided_there():
    wanted = divided("")
    with in_pieces():
        assert torch.equal(divided("grad"), wanted)


@card
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_a_fused_step_of_16_bits_moves_every_parameter(kind: str):
    dtype = getattr(torch, kind)
    start, gradients = made(600, 1001, seed=1).to(dtype), []
    weight = nn.Parameter(start.cuda())
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5, fused=True)
    for seed in (2, 3):
        gradients.append(made(600, 1001, seed=seed).to(dtype))
        weight.grad = gradients[-1].cuda()
        optimizer.step()

    moved = start.float() - 0.5 * gradients[0].float()
    momentum = (0.5 * gradients[0].float() + gradients[1].float()).to(dtype)
    moved = moved.to(dtype).float() - 0.5 * momentum.float()
    found = optimizer.state[weight]["momentum_buffer"].cpu()
    assert torch.equal(found, momentum)
    ends = weight.detach().cpu().float()
    torch.testing.assert_close(ends, moved, rtol=0.01, atol=0.01)


def differentiated(device: str) -> list[torch.Tensor]:
    """The gradient of what a step gives with respect to where it began."""
    start = made(700, 1000, seed=1).to(device).requires_grad_()
    weight = start.clone()
    weight.grad = made(700, 1000, seed=2).to(device)
    optimizer = torch.optim.SGD([weight], lr=0.1, differentiable=True)
    optimizer.step()
    (found,) = torch.autograd.grad(weight.sin().sum(), start)
    return [found.cpu()]


@card
def test_a_differentiable_step_can_be_differentiated():
    with in_pieces():
        assert differences(differentiated("cuda"), differentiated("cpu")) == []


@card
def test_captured_steps_are_left_alone():
    from test_graph_values import warm_up

    for options in ({"fused": True, "capturable": True}, {"capturable": True}):
        finals = []
        for pieces in (False, True):
            weight = nn.Parameter(made(700, 1000, seed=1).cuda())
            weight.grad = made(700, 1000, seed=2).cuda()
            optimizer = torch.optim.Adam([weight], lr=0.1, **options)
            with in_pieces() if pieces else contextlib.nullcontext():
                warm_up(optimizer.step)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    optimizer.step()
                for _ in range(STEPS):
                    graph.replay()
            finals.append(weight.detach().cpu())
            del graph
        assert torch.equal(*finals)


@card
def test_a_compiled_step_gives_the_same_values():
    def steps() -> torch.Tensor:
        weight = nn.Parameter(made(700, 1000, seed=1).cuda())
        weight.grad = made(700, 1000, seed=2).cuda()
        optimizer = torch.optim.Adam([weight], lr=0.1, capturable=True)
        torch._dynamo.reset()
        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(STEPS):
            step()
        return weight.detach().cpu()

    wanted = steps()
    with in_pieces():
        assert torch.equal(steps(), wanted)


@card
def test_where_no_buffer_has_room_the_work_is_done_on_the_host():
    import oomph

    def steps(device: str) -> list[torch.Tensor]:
        weight = nn.Parameter(made(2000, 1000, seed=1).to(device))
        optimizer = torch.optim.Adagrad([weight], lr=0.1, foreach=True)
        weight.grad = made(2000, 1000, seed=2).to(device)
        state = optimizer.state[weight]
        optimizer.step()
        if weight.is_cuda:
            oomph.evict([state["sum"], weight.grad, weight.detach()])
            room = torch.empty(2, 2 * MIB, dtype=torch.uint8, device="cuda")
            kept = fill_device()
            del room  # for two temporary tensors, and not for three places
        with in_pieces(2 * MIB) as link, oomph.no_offload():
            optimizer.step()
        assert link.back_bytes == 0
        if weight.is_cuda:
            del kept
        return [weight.detach().cpu(), state["sum"].cpu()]

    assert differences(steps("cuda"), steps("cpu")) == []
