"""What is saved and not merely memory of its own is used as PyTorch would use it.

Storages that are resized or exchanged, memory of graphs, pools and other libraries, and
tensors that several streams and threads use, while all that may leaves the device.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading

import pytest
import torch
from support import MIB, Simulated, run
from test_activations import Call, card, chain, gradient, planner, rows, sent_bytes
from torch import nn

two = Simulated(
    "512MiB,context=0,memory=values,cc=8.6,devices=2",
    "reserve:0,host_limit:1GiB",
    OMP_NUM_THREADS="1",
)
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


def test_graphs_of_the_compiler_have_their_gradients():
    card = "1GiB,context=0,memory=values,cc=8.6"
    conf = "reserve:0,host_limit:1GiB,offload:always"
    result = run(TREES, card=card, conf=conf, OMP_NUM_THREADS="1")
    assert result.code == 0, result.said
    norms = result.out.split()
    assert len(norms) == 4
    assert len(set(norms)) == 1


# ---- several streams


def branches(x: torch.Tensor, count: int) -> torch.Tensor:
    """A tensor that several streams save and nobody holds."""
    h = x * 2
    if not x.is_cuda:
        return torch.tanh(sum(torch.sin(h * (i + 1)) * h for i in range(count)))
    main = torch.cuda.current_stream()
    found = [torch.sin(h) * h]
    for i in range(1, count):
        stream = torch.cuda.Stream()
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            found.append(torch.sin(h * (i + 1)) * h)
            h.record_stream(stream)
        main.wait_stream(stream)
        found[-1].record_stream(main)
    return torch.tanh(sum(found))


@pytest.mark.parametrize("count", [2, 3])
@card
def test_each_stream_that_uses_what_came_back_waits_for_it(count):
    def train(device):
        x = rows(device)
        z = Call(lambda x: branches(x, count))(x)
        if device == "cuda":
            wait()
        first = torch.autograd.grad(z.sum(), x, retain_graph=True)[0].cpu()
        second = torch.autograd.grad(z.sum(), x)[0].cpu()
        return first, second

    planner()
    found, wanted = train("cuda"), train("cpu")
    assert all(map(torch.equal, found, wanted))
    assert sent_bytes() > BYTES


@card
def test_a_graph_may_be_kept_and_derived_twice_over_several_streams():
    def train(device):
        x = rows(device)
        z = Call(lambda x: branches(x, 2))(x).sum()
        (first,) = torch.autograd.grad(z, x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0].cpu()

    planner()
    # Sums of several streams' gradients are made in an order of their own.
    torch.testing.assert_close(train("cuda"), train("cpu"), rtol=1e-6, atol=1e-3)
    assert sent_bytes() > BYTES


# ---- several threads


class Towers(nn.Module):
    """Two chains of layers, each on a device, so that backward has two threads."""

    def __init__(self, devices: tuple[str, str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.towers = nn.ModuleList(
            nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(16))
            for _ in devices
        )
        for tower, device in zip(self.towers, devices, strict=True):
            tower.to(device)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        sums = []
        for tower, x in zip(self.towers, inputs, strict=True):
            for layer in tower:
                x = torch.tanh(layer(x))
            sums.append(x.sum())
        return sums[0].to(sums[1].device) + sums[1]


@two
def test_backward_over_two_devices_may_switch_threads_at_any_moment():
    import oomph

    wanted = []
    cpu = Towers(("cpu", "cpu"))
    cpu(rows("cpu", 1), rows("cpu", 2)).backward()
    wanted = [p.grad for p in cpu.parameters()]
    planner()
    model = Towers(("cuda:0", "cuda:1"))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(6):
            model.zero_grad()
            model(rows("cuda:0", 1), rows("cuda:1", 2)).backward()
            found = [p.grad.cpu() for p in model.parameters()]
            assert all(map(torch.equal, found, wanted))
            oomph.step()
    finally:
        sys.setswitchinterval(interval)
    assert all(oomph.stats(i)["sent_bytes"] > 0 for i in (0, 1))


def in_threads(count: int, work) -> list:
    """What each of several threads gives; they switch every microsecond."""
    found: list = [None] * count
    interval = sys.getswitchinterval()

    def body(i):
        found[i] = work(i)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return found


@two
def test_forward_and_backward_in_several_threads_have_the_cpus_gradients():
    import oomph

    planner()
    shared = rows("cuda:0", 9).detach()  # all save it

    def work(i):
        device = f"cuda:{i % 2}"
        gradients = []
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream()):
            other = shared.to(device) if i % 2 else shared
            for seed in range(3):
                x = rows(device, 10 * i + seed)
                Call(lambda x: chain(x * other))(x).sum().backward()
                gradients.append(x.grad.cpu())
                oomph.step()
        return gradients

    torch.cuda.synchronize()
    found = in_threads(4, work)
    for i in range(4):
        for seed in range(3):
            x, other = rows("cpu", 10 * i + seed), rows("cpu", 9).detach()
            Call(lambda x, other=other: chain(x * other))(x).sum().backward()
            assert torch.equal(found[i][seed], x.grad), (i, seed)


@card
def test_one_graph_may_be_gone_back_over_by_two_threads():
    planner()
    x = rows()
    z = Call(chain)(x).sum()
    wait()

    def work(_):
        return torch.autograd.grad(z, x, retain_graph=True)[0].cpu()

    wanted = gradient(chain, "cpu")
    assert all(torch.equal(found, wanted) for found in in_threads(3, work))


@card
def test_the_planner_counts_nothing_twice_however_many_threads_end_slots():
    import oomph.planner

    planner()

    def work(i):
        for seed in range(4):
            z = Call(chain)(rows("cuda", seed))
            del z  # what was sent is dropped
        return True

    assert all(in_threads(3, work))
    gc.collect()
    link = oomph.planner._planner.device(0).link
    link.settle()
    assert (link.away_bytes, link.restored_bytes) == (0, 0)
    assert oomph._C.stats(0)["buffer_bytes"] == 0
    assert link.out_bytes % (2 * MIB) == 0


# ---- FSDP2


FSDP = """
import os
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

store = distributed.HashStore()
distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
mesh = init_device_mesh("cuda", (1,))
torch.manual_seed(0)
blocks = [nn.Sequential(nn.Linear(512, 512, bias=False), nn.Tanh()) for _ in range(5)]
model = nn.Sequential(*blocks).cuda()
for block in model:
    fully_shard(block, mesh=mesh, reshard_after_forward=True)
fully_shard(model, mesh=mesh, reshard_after_forward=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(2048, 512, device="cuda")
for _ in range(4):
    loss = model(x).square().mean()
    loss.backward()
    print(loss.item(), *(p.grad.to_local().double().norm().item()
                         for p in model.parameters()))
    optimizer.step()
    optimizer.zero_grad()
import sys
print(torch.cuda.memory_stats().get("reserved_bytes.all.peak", 0), file=sys.stderr)
os._exit(0 if not distributed.destroy_process_group() else 1)
"""


def test_fsdp2_with_default_settings_has_its_gradients_under_pressure():
    card = "1GiB,context=0,memory=values,cc=8.6"
    wanted = run(FSDP, card=card, OMP_NUM_THREADS="1")
    assert wanted.code == 0, wanted.said
    conf = "reserve:0,offload:always,host_limit:1GiB"
    found = run(FSDP, card=card, conf=conf, OMP_NUM_THREADS="1")
    assert found.code == 0, found.said
    assert found.out == wanted.out
