"""What is saved and not merely memory of its own is used as PyTorch would use it.

Storages that are resized or exchanged, and memory of graphs, pools and other libraries,
while all that may leaves the device.
"""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch
from support import run
from test_activations import Call, card, chain, gradient, planner, rows, sent_bytes

ROWS, WIDTH = 4096, 128  # a tensor of 2 MiB
BYTES = ROWS * WIDTH * 4


def wait() -> None:
    """Lets what is on its way to the host get there."""
    torch.cuda.synchronize()


# ---- storages that are resized


class Sharded:
    """A weight whose storage is there in forward, gone, and there again in backward."""

    def __init__(self, device: str, seed: int) -> None:
        self.shard = rows(device, seed).detach()
        self.full = torch.empty(ROWS, WIDTH, device=device)
        self.reshard()

    def unshard(self) -> None:
        self.full.untyped_storage().resize_(BYTES)
        with (
            torch.no_grad(),
            torch.autograd._unsafe_preserve_version_counter(self.full),
        ):
            self.full.copy_(self.shard)

    def reshard(self) -> None:
        self.full.untyped_storage().resize_(0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.unshard()
        y = torch.tanh(x * self.full)
        if x.is_cuda:
            wait()
        self.reshard()
        y.register_hook(lambda _: self.unshard())
        return y


def train_sharded(device: str, steps: int = 3) -> list[torch.Tensor]:
    import oomph

    layers = [Sharded(device, seed) for seed in range(4)]
    model = Call(lambda x: layers[3](layers[2](layers[1](layers[0](x)))))
    gradients = []
    for _ in range(steps):
        x = rows(device, 7)
        model(x).square().sum().backward()
        gradients.append(x.grad.cpu())
        for layer in layers:
            layer.reshard()
        oomph.step()
    return gradients


@card
def test_storages_that_are_resized_have_the_contents_they_have_at_their_use():
    planner()
    found, wanted = train_sharded("cuda"), train_sharded("cpu")
    assert all(map(torch.equal, found, wanted))
    assert sent_bytes() > 0


@card
def test_a_storage_that_was_resized_never_leaves_again():
    import oomph

    planner()
    layers = [Sharded("cuda", seed) for seed in range(2)]
    sent = []
    for first in (torch.Tensor.contiguous, torch.Tensor.contiguous, torch.sin):
        before = sent_bytes()
        x = rows("cuda", 7)
        model = Call(lambda x, first=first: layers[1](layers[0](first(x))))
        model(x).square().sum().backward()
        for layer in layers:
            layer.reshard()
        oomph.step()
        sent.append((sent_bytes() - before) // BYTES)
    # The weights and what each layer gave; then no weights, nor what is held at the
    # end of forward; then, at other places, what the layers gave again.
    assert sent == [4, 1, 2]


@card
def test_a_storage_that_was_emptied_is_not_blown_up_by_those_who_saved_it():
    """Autograd has it as it is, and it takes none of what may be away."""
    import oomph.planner

    planner()
    weight = torch.full((ROWS, WIDTH), 2.0, device="cuda")
    others = rows("cuda", 1).detach()
    y = Call(lambda x: (x * weight).sin() * others)(rows())
    weight.untyped_storage().resize_(0)
    away = oomph.planner._planner.device(0).link.away_bytes
    z = Call(chain)(rows("cuda", 2))
    assert oomph.planner._planner.device(0).link.away_bytes < away + 6 * BYTES
    z.sum().backward()
    assert weight.untyped_storage().nbytes() == 0
    weight.untyped_storage().resize_(BYTES)
    weight.data.fill_(3.0)
    y.sum().backward()
    assert weight.untyped_storage().nbytes() == BYTES


@card
def test_a_storage_may_be_resized_twice_between_its_uses():
    def train(device):
        weight = rows(device, 3).detach()
        first, second = weight.clone(), weight.clone() * 2
        storage = weight.untyped_storage()
        x = rows(device)
        y = Call(lambda x: (x * weight).sin())(x)
        for contents in (first, second):
            storage.resize_(0)
            other = torch.full((ROWS, WIDTH), 9.0, device=device)  # at its address
            Call(lambda x, other=other: x * other)(rows(device)).sum().backward()
            storage.resize_(BYTES)
            weight.data.copy_(contents)
        y.sum().backward()
        return x.grad.cpu()

    planner()
    assert torch.equal(train("cuda"), train("cpu"))


@card
def test_an_address_that_is_given_out_anew_is_another_tensors():
    def train(device):
        weight = rows(device, 3).detach()
        x = rows(device)

        def function(x):
            y = x * weight
            if device == "cuda":
                wait()
            address = weight.data_ptr()
            weight.untyped_storage().resize_(0)
            other = torch.full((ROWS, WIDTH), 9.0, device=device)
            assert device == "cpu" or other.data_ptr() == address
            z = x * other
            del other
            return y, z

        y, z = Call(function)(x)
        z.sum().backward(retain_graph=True)
        weight.untyped_storage().resize_(BYTES)
        weight.data.copy_(rows(device, 4).detach())
        y.sum().backward()
        return x.grad.cpu()

    planner()
    assert torch.equal(train("cuda"), train("cpu"))
    assert sent_bytes() >= 2 * BYTES


# ---- data that are exchanged


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("who", ["leaf", "given", "made"])
@card
def test_data_that_are_exchanged_after_forward_count_as_in_pytorch(who, small):
    """What was given to an operator is used as it is then; what it made, as it was."""

    def train(device):
        x = rows(device)
        if small:
            x = x.detach()[:8].clone().requires_grad_()
        kept = []

        def function(x):
            y = (x * 2).exp() if who == "made" else x * 2
            if who == "leaf":
                y = torch.ones_like(x)
            kept.append(y)
            return y * 1 if who == "made" else y * x

        z = Call(function)(x)
        if device == "cuda":
            wait()
        kept[0].data = torch.full_like(kept[0], 5.0)
        z.sum().backward()
        return x.grad.cpu()

    wanted = train("cpu")  # while there are no hooks
    planner()
    assert torch.equal(train("cuda"), wanted)


@card
def test_a_tensor_set_to_another_storage_raises_pytorchs_error():
    def expect(device):
        x, kept = rows(device), []
        z = Call(lambda x: kept.append(x * 2) or kept[0].sin())(x)
        with torch.no_grad():
            kept[0].set_(torch.ones_like(kept[0]))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()

    planner()
    expect("cpu")
    expect("cuda")


@card
def test_two_tensors_over_one_storage_keep_their_own_versions():
    def train(device):
        x, kept = rows(device), []

        def function(x):
            y = x * 2
            z = y.data  # counts its versions apart
            kept.append(z)
            return y.sin() + z * x

        z = Call(function)(x)
        if device == "cuda":
            wait()
        kept[0].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()
        x.grad = None
        z = Call(lambda x: (x * 2).sin() + (x * 3).data * x)(x)
        z.sum().backward()
        return x.grad.cpu()

    planner()
    assert torch.equal(train("cuda"), train("cpu"))


# ---- what the program writes to


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("used", [False, True])
@card
def test_what_was_sent_may_be_written_to_once_its_graph_has_gone(used, elsewhere):
    import oomph.planner
    from remote import check_sound, sim

    planner()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        others = rows().detach()  # the stream has memory
    torch.cuda.synchronize()
    x, scale = rows().detach(), torch.ones(1, device="cuda", requires_grad=True)
    out = oomph.planner._planner.device(0).link.out.cuda_stream
    sim.oomph_sim_hold(out)  # what leaves goes on leaving
    try:
        y = Call(lambda x: (x * scale).sum())(x)
        assert sent_bytes() == BYTES
        if used:
            y.backward()
        side.wait_stream(torch.cuda.current_stream())  # for what reads x
        del y
        with torch.cuda.stream(side if elsewhere else None):
            x.add_(1)
    finally:
        sim.oomph_sim_release(out)
    torch.cuda.synchronize()
    check_sound()
    assert torch.equal(x.cpu(), rows("cpu").detach() + 1)
    assert torch.equal(others.cpu(), rows("cpu").detach())


# ---- memory that is not only ours


class Owner:
    """Stands for CuPy, DALI and others, which use memory of theirs again."""

    def __init__(self) -> None:
        from remote import sim

        torch.cuda.synchronize()  # or else this thread has no context
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(BYTES)
        assert sim.cuMemAlloc_v2(ctypes.byref(address), size) == 0
        self.__cuda_array_interface__ = {
            "shape": (ROWS, WIDTH),
            "typestr": "<f4",
            "data": (address.value, False),
            "version": 3,
        }


def expect_kept(make, use) -> None:
    """Memory that its owner writes to once nobody seems to have it does not leave."""
    x = rows()
    z = Call(lambda x: x * make())(x)
    wait()
    gc.collect()
    use()
    before = sent_bytes()
    z.sum().backward()
    assert before == 0
    assert bool((x.grad == 5).all())


@card
def test_memory_of_other_libraries_stays():
    planner()
    owner = Owner()
    again = torch.as_tensor(owner, device="cuda")
    expect_kept(lambda: torch.as_tensor(owner, device="cuda"), lambda: again.fill_(5))


@card
def test_memory_of_ours_that_came_back_by_dlpack_stays():
    planner()
    ours = torch.ones(ROWS, WIDTH, device="cuda")
    expect_kept(lambda: torch.from_dlpack(ours.detach()), lambda: ours.fill_(5))


@card
def test_tensors_of_a_mempool_stay():
    planner()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        ours = torch.ones(ROWS, WIDTH, device="cuda")
        lent = Call(lambda x: (x * 2).sin())
        x = rows()
        z = lent(x)
    assert sent_bytes() == 0
    z.sum().backward()
    assert torch.equal(x.grad.cpu(), gradient(lambda x: (x * 2).sin(), "cpu"))
    del ours, z, x
    del pool


@card
def test_what_a_graph_gave_and_eager_work_saved_stays():
    planner()
    given = torch.ones(ROWS, WIDTH, device="cuda")
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        given * 2  # what the first call makes is not of the graph
        with torch.cuda.graph(graph, stream=stream):
            output = given * 2 + 1
    torch.cuda.current_stream().wait_stream(stream)
    graph.replay()
    x = rows()
    z = Call(lambda x, made=output: x * made.view_as(x))(x)
    wait()
    given.fill_(2)
    graph.replay()  # PyTorch has this, too, in backward
    z.sum().backward()
    assert sent_bytes() == 0
    assert bool((x.grad == 5).all())
    del z, x, output, given
    graph.reset()


def test_nested_tensors_and_graphs_of_the_compiler_work():
    code = """
    import torch
    from torch import nn
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
    parts = [torch.randn(900, 512, device="cuda"), torch.randn(700, 512, device="cuda")]
    for layout in (torch.strided, torch.jagged):
        x = torch.nested.nested_tensor(parts, requires_grad=True, layout=layout)
        model(x).to_padded_tensor(0).sum().backward()
        assert model[0].weight.grad.shape == (512, 512)
    print("done")
    """
    result = run(code, card="1GiB,context=0", conf="reserve:0,offload:always")
    assert result.out == "done\n", result.said


TREES = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(3))
    def forward(self, x):
        for i, block in enumerate(self.blocks):
            x = torch.tanh(block(x))
            if i == 1:
                torch._dynamo.graph_break()
        return x

torch.manual_seed(0)
model = Model().cuda()
step = torch.compile(model, backend="cudagraphs")
x = torch.randn(1024, 1024, device="cuda")
for _ in range(4):
    torch.compiler.cudagraph_mark_step_begin()
    model.zero_grad()
    step(x).square().mean().backward()
    print(sum(p.grad.double().square().sum() for p in model.parameters()).item())
"""


@pytest.mark.long
def test_graphs_of_the_compiler_have_their_gradients():
    card = "1GiB,context=0,memory=values,cc=8.6"
    conf = "reserve:0,host_limit:1GiB,offload:always"
    result = run(TREES, card=card, conf=conf)
    assert result.code == 0, result.said
    norms = result.out.split()
    assert len(norms) == 4
    assert len(set(norms)) == 1
