"""CUDA tensors and events between processes: after PyTorch's test_multiprocessing.py.

PyTorch's tests start a process each; here one other process serves them all.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from both import CARD, TWO, both, keep_busy, ways
from peers import Peer, peer_of
from support import run

on_two = both(on=TWO)
multiprocessing = torch.multiprocessing


# ---- the other process


class Other:
    """What the other process can be asked for; it keeps what it is given by name."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.graph: Any = None

    def keep(self, name: str, thing: Any) -> None:
        self.kept[name] = thing

    def drop(self, *names: str) -> None:
        for name in names:
            del self.kept[name]
        torch.cuda.ipc_collect()

    def ones(self, *shape: int) -> Any:
        """Makes and keeps a tensor, and sends it twice."""
        self.kept["ones"] = torch.ones(*shape, device="cuda")
        return [self.kept["ones"], self.kept["ones"]]

    def count_up(self, count: int) -> Any:
        """Sends so many small tensors, and keeps none."""
        return [torch.full([5], i, device="cuda") for i in range(count)]

    def mixed(self) -> Any:
        self.kept["mixed"] = torch.ones(2, 2).cuda(), torch.zeros(2, 2).byte().cuda()
        return self.kept["mixed"]

    def parts(self) -> Any:
        """What rebuild_cuda_tensor wants of two halves of one storage."""
        halves = torch.ones(2, device="cuda").chunk(2)
        self.kept["halves"] = halves
        keys = ["device", "handle", "size_bytes", "offset_bytes"]
        keys = [f"storage_{key}" for key in keys]
        keys += ["ref_counter_handle", "ref_counter_offset"]
        keys += ["event_handle", "event_sync_required"]
        specs = []
        for half in halves:
            spec = dict(zip(keys, half.untyped_storage()._share_cuda_(), strict=True))
            spec.update(tensor_cls=type(half), storage_cls=torch.UntypedStorage)
            spec.update(tensor_size=half.shape, tensor_stride=half.stride())
            spec.update(tensor_offset=half.storage_offset(), dtype=half.dtype)
            specs.append({**spec, "requires_grad": False})
        return specs

    def fill(self, name: str, value: float) -> None:
        for tensor in self.kept[name]:
            tensor.fill_(value)
        torch.cuda.synchronize()

    def sums(self, name: str) -> list[tuple[float, int, int]]:
        return [(t.sum().item(), t.get_device(), t.numel()) for t in self.kept[name]]

    def look(self, name: str) -> dict[str, Any]:
        """What has come of a variable."""
        found = self.kept[name]
        return {
            "type": type(found).__name__,
            "values": found.detach().flatten().tolist(),
            "requires_grad": found.requires_grad,
            "grad": found.grad is not None,
            "hooks": bool(found._backward_hooks),
        }

    def set_data(self, name: str, value: float) -> None:
        self.kept[name].data.fill_(value)
        self.kept[name]._grad = torch.full_like(self.kept[name].data, value)
        torch.cuda.synchronize()

    def double_after(self, name: str) -> None:
        """Multiplies a tensor once its event has come, and records that again."""
        event, tensor = self.kept[name]
        with torch.cuda.stream(torch.cuda.Stream()):
            event.wait()
            tensor.mul_(2)
            event.record()

    def open_event(self, name: str, handle: bytes) -> None:
        self.kept[name] = torch.cuda.Event.from_ipc_handle(0, handle)

    def wait_for(self, name: str) -> bool:
        self.kept[name].synchronize()
        return self.kept[name].query()

    def record(self, name: str) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(1000)
            self.kept[name].record()


def peer() -> Peer:
    """The one other process of this process."""
    return peer_of(Other)


def drop(*names: str) -> None:
    """The other process lets go, and this one notices."""
    peer()("drop", *names)
    torch.cuda.ipc_collect()


# ---- tensors


@on_two
def test_cuda_simple():
    ask, x = peer(), torch.zeros(5, 5).cuda()
    ask("keep", "x", [x, x[:, 1]])
    ask("fill", "x", 4)
    assert bool((x == 4).all())
    drop("x")
    first, second = ask("ones", 5, 5)
    assert bool((first == 1).all())
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    del first, second
    drop("ones")


@pytest.mark.parametrize("count", [5, 200])
@on_two
def test_cuda_memory_allocation(count):
    """Also test_cuda_send_many, with fewer: the sender may drop what is on its way."""
    ask = peer()
    found = ask("count_up", count)
    assert [t[0].item() for t in found] == list(range(count))
    ask("keep", "sums", [t.clone() for t in found])
    del found
    assert sum(total for total, _, _ in ask("sums", "sums")) == sum(range(count)) * 5
    drop("sums")
    torch.cuda.ipc_collect()


@on_two
def test_cuda_small_tensors():
    ask = peer()
    sent = [torch.arange(i * 5.0, (i + 1) * 5).cuda(i % 2) for i in range(5)]
    ask("keep", "small", sent)
    wanted = [(sum(range(i * 5, i * 5 + 5)), i % 2, 5) for i in range(5)]
    assert [tuple(found) for found in ask("sums", "small")] == wanted
    drop("small")
    sent.clear()
    torch.cuda.ipc_collect()


@on_two
def test_mixed_types_cuda_sharing():
    ask = peer()
    for _ in range(5):
        ones, zeros = ask("mixed")
        assert ones.dtype == torch.float and zeros.dtype == torch.uint8
        assert bool((ones == 1).all()) and bool((zeros == 0).all())
        del ones, zeros
        drop("mixed")


@on_two
def test_rebuild_cuda_tensor():
    ask = peer()
    rebuild = multiprocessing.reductions.rebuild_cuda_tensor
    halves = [rebuild(**spec) for spec in ask("parts")]
    assert [half.tolist() for half in halves] == [[1], [1]]
    del halves
    drop("halves")


@on_two
def test_empty_tensor_sharing_cuda():
    ask = peer()
    for dtype in (torch.float32, torch.int64):
        ask("keep", "empty", [torch.tensor([], dtype=dtype, device="cuda")])
        assert [tuple(found) for found in ask("sums", "empty")] == [(0, 0, 0)]
        drop("empty")


@on_two
def test_is_shared_cuda():
    assert torch.ones(5, 5).cuda().is_shared()


# ---- variables and parameters


def check_variable(variable: torch.Tensor) -> None:
    """The other process sees its data, and neither its hooks nor its gradient."""
    ask = peer()
    if variable.requires_grad:
        # What cannot be pickled is left behind.
        hook = torch.utils.hooks.unserializable_hook(lambda *_: None)
        variable.register_hook(hook)
    variable._grad = torch.zeros(5, 5, device="cuda")
    ask("keep", "variable", variable)
    variable.data[0, 0] = 1000
    variable.grad.fill_(4)
    torch.cuda.synchronize()
    assert ask("look", "variable") == {
        "type": type(variable).__name__,
        "values": [1000.0, *map(float, range(2, 26))],
        "requires_grad": variable.requires_grad,
        "grad": False,
        "hooks": False,
    }
    ask("set_data", "variable", 1)
    assert bool((variable.data == 1).all()) and bool((variable.grad == 4).all())
    drop("variable")


def numbers() -> torch.Tensor:
    return torch.arange(1.0, 26, device="cuda").view(5, 5)


@pytest.mark.parametrize("requires_grad", [True, False])
@on_two
def test_cuda_variable_sharing(requires_grad):
    check_variable(numbers().requires_grad_(requires_grad))


@on_two
def test_cuda_parameter_sharing():
    check_variable(torch.nn.Parameter(numbers()))


@pytest.mark.parametrize("requires_grad", [True, False])
@on_two
def test_leaf_variable_sharing(requires_grad):
    ask = peer()
    ask("keep", "leaf", numbers().requires_grad_(requires_grad))
    assert ask("look", "leaf")["requires_grad"] is requires_grad
    drop("leaf")


@on_two
def test_non_leaf_variable_sharing():
    result = numbers().requires_grad_(True) * 2
    with pytest.raises(RuntimeError, match="requires_grad"):
        multiprocessing.SimpleQueue().put(result)


@on_two
def test_integer_parameter_serialization_cuda():
    zero = torch.tensor(0, dtype=torch.int64, device="cuda")
    ask = peer()
    ask("keep", "integer", torch.nn.Parameter(zero, requires_grad=False))
    assert ask("look", "integer")["values"] == [0]
    drop("integer")


# ---- events


@on_two
def test_event():
    """The other process multiplies what this one has yet to add to."""
    ask = peer()
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor = torch.ones(4, device="cuda")
        event = torch.cuda.Event(interprocess=True)
        keep_busy()
        tensor.add_(1)
        event.record()
        ask("keep", "event", (event, tensor))
        ask("double_after", "event")
        event.synchronize()
        assert tensor.tolist() == [4] * 4
    drop("event")
    torch.cuda.synchronize()


@on_two
def test_event_multiprocess():
    ask, event = peer(), torch.cuda.Event(interprocess=True)
    assert event.query()
    ask("keep", "waited", event)
    torch.cuda._sleep(1000)
    event.record()
    assert ask("wait_for", "waited") is True
    assert event.query()
    drop("waited")


@on_two
def test_event_handle_multi_gpu():
    with torch.cuda.device(0):
        fresh, recorded = (torch.cuda.Event(interprocess=True) for _ in range(2))
    with torch.cuda.device(1):
        fresh.ipc_handle()
    with torch.cuda.device(0):
        recorded.record(torch.cuda.Stream())
    with torch.cuda.device(1):
        recorded.ipc_handle()


@on_two
def test_event_handle_importer():
    ask, event = peer(), torch.cuda.Event(interprocess=True)
    assert event.query()
    ask("open_event", "imported", event.ipc_handle())
    torch.cuda._sleep(1000)
    event.record()
    assert ask("wait_for", "imported") is True
    assert event.query()
    drop("imported")


@on_two
def test_event_handle_exporter():
    ask, event = peer(), torch.cuda.Event(interprocess=True)
    ask("open_event", "exported", event.ipc_handle())
    ask("record", "exported")
    event.synchronize()
    assert event.query()
    drop("exported")


# ---- forks


@ways()
def test_wrong_cuda_fork(conf):
    """Also test_cuda_bad_call and test_autograd_errors: a fork has no CUDA."""
    code = """
        import torch
        from torch.multiprocessing import get_context
        context = get_context("fork")
        def work(end, what):
            try:
                what()
            except Exception as error:
                end.send(str(error))
            else:
                end.send("nothing was wrong")
        def use():
            torch.zeros(5, 5).cuda()
        def choose():
            torch.cuda.set_device(0)
        def differentiate():
            torch.rand(3).requires_grad_(True).mean().backward()
        torch.rand(20, 2).cuda()
        differentiate()
        for what in (use, choose, differentiate):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, what))
            process.start()
            print(ours.recv().splitlines()[0])
            process.join()
    """
    done = run(code, card=CARD, conf=conf)
    said = done.out.splitlines()
    assert len(said) == 3, done.said
    assert "Cannot re-initialize CUDA in forked subprocess" in said[0]
    assert "Cannot re-initialize CUDA in forked subprocess" in said[1]
    assert "Unable to handle autograd's threading in combination with fork" in said[2]


@on_two
def test_cuda_ipc_deadlock():
    """Weights go over again and again while the other process takes its time."""
    ask = peer()
    network = torch.nn.LSTM(1, 1).cuda()
    for _ in range(20):
        ask("keep", "weights", {k: v.clone() for k, v in network.state_dict().items()})
        torch.cuda.ipc_collect()
    drop("weights")
    assert sys.getrefcount(network) > 0
