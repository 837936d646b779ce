"""What is saved for backward goes to the host and comes back, and nobody notices."""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings

import pytest
import torch
from support import MIB, Simulated
from torch import nn
from torch.utils.checkpoint import checkpoint

card = Simulated(
    "512MiB,context=0,memory=values,cc=8.6",
    "reserve:0,host_limit:1GiB",
)
ROWS, WIDTH = 4096, 128  # a tensor of 2 MiB
BYTES = ROWS * WIDTH * 4


def planner():
    """The planner, sending all that it may."""
    from oomph import planner

    planner.start(always=True)
    return planner


def sent_bytes() -> int:
    import oomph.planner

    return oomph.planner.explain().get(0, {"sent_bytes": 0})["sent_bytes"]


def buffer_bytes() -> int:
    import oomph

    return oomph._C.stats(0)["buffer_bytes"]


def hooks_are_on() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def rows(device: str = "cuda", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, WIDTH, generator=generator).to(device).requires_grad_()


class Call(nn.Module):
    """A function as a module: a scope of its own."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def gradient(function, device: str) -> torch.Tensor:
    x = rows(device)
    Call(function)(x).sum().backward()
    return x.grad.cpu()


def chain(x: torch.Tensor) -> torch.Tensor:
    return ((x * 2).sin() * x).exp().tanh()


# ---- values


def slopes(function):
    """Its gradients, with a graph of their own, within the call of a module."""
    return Call(
        lambda x: torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]
    )


@card
def test_gradients_over_what_was_away_are_the_cpus():
    planner()
    assert torch.equal(gradient(chain, "cuda"), gradient(chain, "cpu"))
    assert sent_bytes() >= 4 * 2 * MIB


@card
def test_a_storage_leaves_once_however_many_views_of_it_are_saved():
    def function(x):
        y = x * 3
        a, b = y[: ROWS // 2], y[ROWS // 2 :]
        return a * b + (a - b) * y.view(-1, 1, WIDTH)[ROWS // 2 :, 0]

    planner()
    assert torch.equal(gradient(function, "cuda"), gradient(function, "cpu"))
    assert sent_bytes() == 2 * MIB  # y; a - b is small


@card
def test_a_tensor_of_odd_strides_comes_back_as_it_was():
    def function(x):
        y = (x * 2).t()[3:, 5:]
        z = y.to(torch.complex64).conj()
        return (y * y.roll(1, 1)).t().reshape(-1)[7:] * z.real.reshape(-1)[7:].sin()

    planner()
    assert torch.equal(gradient(function, "cuda"), gradient(function, "cpu"))


@card
def test_a_graph_that_is_kept_serves_again():
    planner()
    x = rows()
    y = Call(chain)(x).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)[0].cpu()
    held = torch.cuda.memory_allocated()
    second = torch.autograd.grad(y, x, retain_graph=True)[0].cpu()
    assert torch.equal(first, second)
    assert torch.equal(first, gradient(chain, "cpu"))
    assert torch.cuda.memory_allocated() == held
    assert buffer_bytes() > 0
    del y
    gc.collect()
    assert buffer_bytes() == 0


@card
def test_gradients_of_gradients_are_the_cpus():
    def second(device):
        x = rows(device)
        y = Call(chain)(x).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0].cpu()

    planner()
    assert torch.equal(second("cuda"), second("cpu"))
    assert sent_bytes() > 0


@card
def test_what_came_back_and_is_saved_again_has_one_copy():
    """Forces are gradients, with a graph of their own that saves the same again."""

    def second(device):
        x = rows(device)
        forces = slopes(lambda x: (x * 2).sin())(x)
        return torch.autograd.grad(forces.square().sum(), x)[0].cpu()

    planner()
    assert torch.equal(second("cuda"), second("cpu"))
    assert sent_bytes() == BYTES
    gc.collect()
    assert buffer_bytes() == 0


class Doubles(torch.autograd.Function):
    """Its backward writes to what forward has saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            x.mul_(2)
        return gradient * x.cos()


@card
def test_what_came_back_and_was_written_to_is_saved_as_it_is_now():
    def second(device):
        x = rows(device)
        first = slopes(lambda x: Doubles.apply(x * 3))(x)
        return torch.autograd.grad(first.square().sum(), x)[0].cpu()

    planner()
    assert torch.equal(second("cuda"), second("cpu"))
    assert sent_bytes() > 0


@card
def test_a_graph_that_is_dropped_leaves_nothing():
    planner()
    y = Call(chain)(rows())
    assert buffer_bytes() > 0
    del y
    gc.collect()
    assert buffer_bytes() == 0


@card
def test_what_somebody_holds_has_no_copy_once_backward_begins():
    planner()
    x, held = rows(), []
    y = Call(lambda x: held.append(x * 2) or held[0].sin().exp())(x)
    sent = buffer_bytes()
    y.sum().backward(retain_graph=True)
    assert buffer_bytes() <= sent - held[0].nbytes
    held.clear()
    y.sum().backward()
    of_cpu = gradient(lambda x: (x * 2).sin().exp(), "cpu")
    assert torch.equal(x.grad.cpu(), 2 * of_cpu)


@card
def test_what_was_fetched_and_never_used_is_not_overwritten():
    planner()
    x = rows()
    y = Call(chain)(x)
    import oomph.planner

    slots = list(oomph.planner._planner.device(0).offloaded.values())
    assert len(slots) >= 4
    for slot in slots:
        slot.fetch()
    del y, slots, slot
    other = [torch.full((ROWS, WIDTH), 7.0, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    assert all(bool((tensor == 7).all()) for tensor in other)


# ---- what PyTorch checks


def expect_modified(change) -> str:
    x = rows()
    kept = []

    def function(x):
        y = x * 2
        kept.append(y)
        return y.sin()

    z = Call(function)(x).sum()
    torch.cuda.synchronize()
    change(kept[0])
    with pytest.raises(RuntimeError) as caught:
        z.backward()
    return str(caught.value)


@pytest.mark.parametrize("sends", [True, False])
@card
def test_an_edit_in_place_of_what_is_saved_raises_pytorchs_error(sends):
    import oomph.planner

    own = expect_modified(lambda y: y.mul_(3))
    assert "modified by an inplace operation: [torch.cuda.FloatTensor" in own
    planner()
    if not sends:
        oomph.planner._planner.device(0).plan.target_bytes = 0
    error = expect_modified(lambda y: y.mul_(3))
    assert (sent_bytes() > 0) == sends
    start, _, end = own.partition(", which is output 0 of")
    assert error.startswith(start)
    assert (
        error.partition("is at version")[2].partition("with torch")[0]
        == (end.partition("is at version")[2].partition("with torch")[0])
    )


@card
def test_an_edit_before_saving_again_sends_the_new_contents():
    def function(x):
        y = x * 2
        a = y.detach().sin() * x  # does not save y
        y.data.add_(1)
        return a * (y * x).cos()

    planner()
    assert torch.equal(gradient(function, "cuda"), gradient(function, "cpu"))


# ---- where hooks are on


@card
def test_hooks_are_on_in_the_outermost_module_call_alone():
    planner()
    seen = []
    inner = Call(lambda x: (seen.append(hooks_are_on()), x * 2)[1])
    outer = Call(lambda x: (inner(x), seen.append(hooks_are_on()))[0])
    outer(rows())
    assert seen == [True, True]
    assert not hooks_are_on()


@card
def test_an_error_in_forward_takes_the_hooks_off():
    def fail(x):
        raise ValueError("no")

    planner()
    with pytest.raises(ValueError, match="no"):
        Call(fail)(rows())
    assert not hooks_are_on()
    assert torch.equal(gradient(chain, "cuda"), gradient(chain, "cpu"))


@card
def test_an_interrupted_forward_is_tidied_up_at_the_next_step():
    import oomph

    def interrupt(x):
        raise KeyboardInterrupt

    planner()
    with pytest.raises(KeyboardInterrupt):
        Call(interrupt)(rows())
    oomph.step()
    assert hooks_are_on()  # for the next step, once
    assert torch.equal(gradient(chain, "cuda"), gradient(chain, "cpu"))
    oomph.planner.stop()
    assert not hooks_are_on()


@card
def test_hooks_of_the_users_are_left_alone():
    planner()
    seen = []

    def pack(tensor):
        seen.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        Call(chain)(rows()).sum().backward()
        assert hooks_are_on()
    assert not hooks_are_on()
    assert len(seen) > 0
    assert sent_bytes() == 0


@card
def test_hooks_of_the_users_within_a_module_win_there():
    planner()
    seen = []

    def pack(tensor):
        seen.append(tensor.shape)
        return tensor

    def function(x):
        y = chain(x)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            z = y.sin()
        return z.cos()

    assert torch.equal(gradient(function, "cuda"), gradient(function, "cpu"))
    assert len(seen) == 2  # ours did not hide it, and the CPU's
    assert sent_bytes() > 0


@card
def test_functions_of_torch_func_work_within_a_module():
    def function(x):
        a = chain(x)
        b = torch.func.grad(lambda t: t.sin().sum())(a)
        c = torch.func.vmap(lambda t: t * t.sum())(b)
        return (a * c).sin()

    planner()
    assert torch.equal(gradient(function, "cuda"), gradient(function, "cpu"))
    assert sent_bytes() > 0
    assert not hooks_are_on()


@card
def test_parameters_that_torch_func_wraps_are_no_plain_memory():
    import oomph

    def gradients(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        module = nn.Linear(WIDTH, WIDTH).to(device)
        if device == "cuda":
            module(rows()).sum().backward()
            oomph.step()  # hooks are on from here, also outside of modules

        def loss(given: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(module, given, (x,)).sum()

        given = {name: p.detach() for name, p in module.named_parameters()}
        x = rows(device).detach()[:8]
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
        return each(given, x)["weight"].cpu()

    planner()
    assert torch.equal(gradients("cuda"), gradients("cpu"))


@card
def test_a_module_under_torch_func_saves_as_ever():
    planner()
    module = Call(chain)

    def run(device):
        return torch.func.grad(lambda x: module(x).sum())(rows(device).detach()).cpu()

    assert torch.equal(run("cuda"), run("cpu"))
    assert sent_bytes() == 0


@pytest.mark.parametrize("reentrant", [True, False])
@card
def test_checkpointing_is_not_disturbed(reentrant):
    def function(x):
        for _ in range(3):
            x = checkpoint(chain, x, use_reentrant=reentrant)
        return x

    planner()
    assert torch.equal(gradient(function, "cuda"), gradient(function, "cpu"))
    # Of three blocks at most the input of each leaves; nothing that is run again does.
    assert sent_bytes() <= 3 * 2 * MIB


@card
def test_forward_without_gradients_sends_nothing():
    planner()
    with torch.no_grad():
        Call(chain)(rows())
    assert sent_bytes() == 0


@card
def test_threads_have_hooks_of_their_own():
    planner()
    found = {}

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = rows(seed=seed)
            Call(chain)(x).sum().backward()
            found[seed] = x.grad.cpu()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        x = rows("cpu", seed)
        Call(chain)(x).sum().backward()
        assert torch.equal(found[seed], x.grad)


@card
def test_a_compiled_region_is_compiled_once():
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    planner()
    module = Call(chain)
    fast = torch.compile(module, backend=backend, fullgraph=True)
    wanted = gradient(chain, "cpu")
    for _ in range(3):
        x = rows()
        fast(x).sum().backward()
        assert torch.equal(x.grad.cpu(), wanted)
    assert len(compiled) == 1
    assert sent_bytes() > 0


@card
def test_pytorch_warns_of_hooks_on_all_modules_only_where_the_program_has_some():
    def warnings_of(module):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            module(rows()).sum().backward()
        return [w for w in caught if "global hooks" in str(w.message)]

    torch._dynamo.reset()
    planner()
    fast = torch.compile(Call(chain), backend="eager")
    assert warnings_of(fast) == []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert len(warnings_of(fast)) == 1
    handle.remove()
    assert warnings_of(fast) == []


# ---- what stays


@card
def test_parameters_and_what_is_small_stay():
    planner()
    layer = nn.Linear(1024, 1024).cuda()
    layer(torch.randn(64, 1024, device="cuda")).sin().sum().backward()
    assert sent_bytes() == 0


@card
def test_without_host_memory_all_stays():
    import oomph

    planner()
    free = oomph._C.stats(0)["host_limit_bytes"]
    out, back = torch.cuda.Stream(), torch.cuda.Stream()
    taken = oomph._C.buffer(0, free, out.cuda_stream, back.cuda_stream)
    assert torch.equal(gradient(chain, "cuda"), gradient(chain, "cpu"))
    assert sent_bytes() == 0
    oomph._C.free_buffer(taken)
    with contextlib.suppress(ValueError):
        oomph._C.free_buffer(taken)
        pytest.fail("a buffer was freed twice")
