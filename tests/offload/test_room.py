"""What was saved and stayed leaves when memory runs out, before anything falls back."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from support import MIB, Simulated
from test_activations import ROWS, WIDTH, Call, chain, gradient, rows
from test_planner import Training
from torch import nn

SETTINGS = "reserve:0,host_limit:1GiB"
card = Simulated("512MiB,context=0,memory=values,cc=8.6", SETTINGS)
shapes = Simulated("2GiB,context=0", "reserve:0,host_limit:16GiB")
strict = Simulated("512MiB,context=0,memory=values,cc=8.6", f"{SETTINGS},strict:yes")
STORAGE = ROWS * WIDTH * 4  # bytes


def watch() -> None:
    """Has the planner see what is saved; by its plan nothing leaves."""
    from oomph import planner

    started = planner.start()
    started.recompute = False
    started.device(0).shortage.is_on = True
    planner._put_hooks()


def make_room(size_bytes: int) -> int:
    """As the core asks: in another thread, which has no stream of its own."""
    from oomph import planner

    freed: list[int] = []

    def ask() -> None:
        freed.append(planner._make_room(0, size_bytes))

    helper = threading.Thread(target=ask)
    helper.start()
    helper.join()
    torch.cuda.synchronize()
    return freed[0]


def backward_after(function, room_bytes: int) -> tuple[torch.Tensor, int]:
    """The gradient of a function, if there was to be room before backward.

    Returns:
        It, and the bytes that came free.
    """
    x = rows()
    loss = Call(function)(x).sum()
    before = torch.cuda.memory_allocated()
    reported = make_room(room_bytes)
    freed = before - torch.cuda.memory_allocated()
    assert freed == reported
    loss.backward()
    return x.grad.cpu(), freed


# ---- what leaves


@card
def test_what_has_left_comes_back_for_backward():
    watch()
    found, freed = backward_after(chain, 2 * STORAGE)
    assert freed == 2 * STORAGE
    assert torch.equal(found, gradient(chain, "cpu"))


@card
def test_all_leaves_that_is_only_saved():
    watch()
    found, freed = backward_after(chain, 1 << 40)
    assert freed == 4 * STORAGE  # not x, which the program has
    assert torch.equal(found, gradient(chain, "cpu"))


@card
def test_what_the_program_holds_stays():
    held = []

    def function(x):
        held.append((x * 2).sin())
        return (held[0] * x).exp()

    watch()
    found, freed = backward_after(function, 1 << 40)
    assert freed == 2 * STORAGE  # x * 2 and what exp() gave
    wanted = gradient(lambda x: ((x * 2).sin() * x).exp(), "cpu")
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("held", ["storage", "view", "object"])
@card
def test_a_storage_that_is_held_otherwise_stays(held):
    kept = []
    hold = {
        "storage": torch.Tensor.untyped_storage,
        "view": lambda y: y[1:].detach(),
        "object": torch.Tensor.detach,
    }

    def function(x):
        y = x * 2
        if x.is_cuda:
            kept.append(hold[held](y))
        return y.sin()

    watch()
    found, freed = backward_after(function, 1 << 40)
    assert freed == 0
    assert torch.equal(found, gradient(function, "cpu"))


@card
def test_views_of_a_storage_leave_together():
    def function(x):
        y = x * 3
        a, b = y[: ROWS // 2], y[ROWS // 2 :]
        return a * b

    watch()
    found, freed = backward_after(function, 1)
    assert freed == STORAGE
    assert torch.equal(found, gradient(function, "cpu"))


@card
def test_what_needs_no_gradient_leaves_too():
    mask = rows("cpu", 5).detach() > 0

    def function(x):
        scale = torch.where(mask.to(x.device), 2.0, -1.0)
        return x * scale

    watch()
    found, freed = backward_after(function, 1 << 40)
    assert freed == STORAGE  # scale, which is a leaf of the graph
    assert torch.equal(found, gradient(function, "cpu"))


class Adjoint(torch.autograd.Function):
    """Builds a graph of its own in backward, and uses it there."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return chain(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = chain(x)
        if x.is_cuda:
            Adjoint.freed = make_room(1 << 40)
        return torch.autograd.grad(y, x, gradient)


@card
def test_what_is_saved_within_a_backward_leaves_too():
    from oomph.offload import activations

    watch()
    activations.cover_thread()  # backward runs outside of modules
    found = gradient(Adjoint.apply, "cuda")
    assert Adjoint.freed == 3 * STORAGE  # not y
    assert torch.equal(found, gradient(Adjoint.apply, "cpu"))


@card
def test_what_is_used_last_leaves_first():
    from oomph import planner

    watch()
    first = Call(lambda x: (x * 2).sin())(rows())
    second = Call(lambda x: (x * 3).sin())(rows())
    assert make_room(STORAGE) == STORAGE
    away = [o.sequence for o in planner._planner.device(0).fetches.away()]
    assert len(away) == 1
    assert make_room(STORAGE) == STORAGE
    later = [o.sequence for o in planner._planner.device(0).fetches.away()]
    assert later[0] == away[0] < later[1]
    (first + second).sum().backward()


@card
def test_what_is_much_larger_than_what_is_missing_stays():
    def function(x):
        return (torch.cat([x] * 8) * 2).sin()  # saves 16 MiB

    watch()
    found, freed = backward_after(function, STORAGE)
    assert freed == 0
    assert torch.equal(found, gradient(function, "cpu"))
    assert backward_after(function, 8 * STORAGE)[1] == 8 * STORAGE


@card
def test_a_graph_that_is_kept_serves_again_after_its_storages_have_left():
    watch()
    x = rows()
    y = Call(chain)(x).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)[0].cpu()
    assert make_room(1 << 40) == 4 * STORAGE
    second = torch.autograd.grad(y, x, retain_graph=True)[0].cpu()
    assert torch.equal(first, second)
    assert make_room(1 << 40) == 0  # it is away: what came back is gone after its use
    del y
    gc.collect()


@card
def test_a_graph_that_was_dropped_has_nothing_to_send():
    watch()
    y = Call(chain)(rows())
    del y
    gc.collect()
    assert make_room(1 << 40) == 0


@card
def test_work_of_the_stream_on_which_it_was_saved_is_waited_for():
    def function(x):
        side = torch.cuda.Stream() if x.is_cuda else None
        if side is not None:
            side.wait_stream(torch.cuda.current_stream())
            x.record_stream(side)
        with torch.cuda.stream(side):
            y = x
            for _ in range(50):  # what is saved is far from computed when it leaves
                y = y.sin() * 2
            y = y.exp()
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
            y.record_stream(torch.cuda.current_stream())
        return y

    watch()
    found, freed = backward_after(function, 1 << 40)
    assert freed == 50 * STORAGE
    assert torch.equal(found, gradient(function, "cpu"))


@card
def test_a_change_in_place_is_noticed_after_the_storage_has_left():
    def function(x):
        y = (x * 2).sin()
        z = y * x
        y.add_(1)
        del y
        return z

    watch()
    loss = Call(function)(rows()).sum()
    assert make_room(1 << 40) > 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@card
def test_what_came_back_too_early_is_let_go_again():
    from oomph import planner

    watch()
    x = rows()
    loss = Call(chain)(x).sum()
    assert make_room(1 << 40) == 4 * STORAGE
    device = planner._planner.device(0)
    last = list(device.fetches.away())[-1]
    sent = device.link.out_bytes
    last.fetch()
    device.fetches._note_early(last)
    torch.cuda.synchronize()
    assert make_room(1) == STORAGE
    assert last.is_away and device.link.out_bytes == sent  # its copy was there
    loss.backward()
    assert torch.equal(x.grad.cpu(), gradient(chain, "cpu"))


# ---- whoever asks


@shapes
def test_a_batch_longer_than_any_before_hardly_uses_the_host():
    training = Training(12)
    assert training.step()["rescues"] == 0  # it fits
    assert training.step(batch=3)["rescues"] > 0  # nothing is known of what is saved
    late = []
    for batch in (4, 3, 5, 1, 5):
        step = training.step(batch)
        assert step["step_host_used_bytes"] <= 0.01 * step["missing_bytes"]
        late.append(step["step_sent_late_bytes"])
    assert late[0] > 0
    assert late[2:] == [0, 0, 0]  # by then such steps are planned for


@strict
def test_nothing_leaves_for_what_must_not_be_rescued():
    watch()
    kept = [Call(chain)(rows()) for _ in range(10)]
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(500 * MIB, dtype=torch.uint8, device="cuda")
    assert len(kept) == 10


@pytest.mark.long
@card
def test_steps_that_send_late_give_the_cpus_values():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            layers = [nn.Linear(256, 256) for _ in range(8)]
            self.layers = nn.Sequential(*(m for x in layers for m in (x, nn.GELU())))

        def forward(self, x):
            return self.layers(x).square().mean()

    def train(device: str) -> list[torch.Tensor]:
        model = Model().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for large in (0, 420, 0, 430):
            x = torch.randn(8 * 1024, 256, generator=generator).to(device)
            loss = model(x)
            torch.ones(large * MIB // 4, device=device)  # for a moment
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().cpu())
        return losses

    import oomph

    watch()
    found, wanted = train("cuda"), train("cpu")
    assert found == wanted
    assert oomph.stats()["rung_room"] > 0
    assert oomph.stats()["rescues"] == 0
