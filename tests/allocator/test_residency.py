"""Tensors that move between device and host: evict, promote, pin, residency.

The simulated card computes here, so that a byte that is lost is a value that differs
from the CPU's.
"""

import ctypes
from collections.abc import Callable, Iterator

import oomph
import pytest
import torch
from oomph import _C
from support import MIB, Simulated

WIDTH = 1500
WEIGHT_BYTES = 9_000_448  # of a block; no multiple of a page: they share some
STEPS = 6

card = Simulated(
    "256MiB,context=0,memory=values,cc=8.6,host=2GiB",
    "reserve:0,host_limit:1GiB",
)
no_host_pages = Simulated(
    "256MiB,context=0,memory=real,host-pages=none", "reserve:0,host_limit:1GiB"
)
pytorchs_own = Simulated("256MiB,context=0,memory=real", None)

Between = Callable[[int, list[torch.Tensor]], None]


def everything(model, optimizer) -> Iterator[torch.Tensor]:
    """The parameters and the optimizer's state, on their device."""
    yield from model.parameters()
    for state in optimizer.state.values():
        yield from (value for value in state.values() if value.device.type == "cuda")


def train(device: str, between: Between | None = None) -> list[torch.Tensor]:
    """Trains a small model; gives losses, parameters and state, on the CPU."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    results = []
    for step in range(STEPS):
        x = torch.randn(16, WIDTH).to(device)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        results.append(loss.detach().cpu())
        del loss, x
        optimizer.zero_grad()
        if between is not None:
            between(step, list(everything(model, optimizer)))
    return results + [t.detach().cpu() for t in everything(model, optimizer)]


def on_cpu() -> list[torch.Tensor]:
    """The same there; the state's steps are CPU tensors in both."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    results = []
    for _ in range(STEPS):
        x = torch.randn(16, WIDTH)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        results.append(loss.detach())
    state = optimizer.state.values()
    moments = [v for s in state for k, v in s.items() if k != "step"]
    return results + [p.detach() for p in model.parameters()] + moments


def assert_same_bits(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def large(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t for t in tensors if t.nbytes > MIB]


def host_share(tensors: list[torch.Tensor]) -> float:
    """Of their bytes; the ends of some share pages with what stays."""
    place = oomph.residency(tensors)
    return place.host_bytes / (place.host_bytes + place.device_bytes)


def fallen_back(size_bytes: int) -> torch.Tensor:
    """A tensor that is, since the card is full for that moment."""
    free, _ = torch.cuda.mem_get_info()
    full = torch.empty(free, dtype=torch.uint8, device="cuda")
    tensor = torch.arange(size_bytes, device="cuda").to(torch.uint8)
    del full
    return tensor


# ---- training


@card
def test_training_between_which_all_is_evicted_gives_the_cpus_bits():
    addresses = []

    def evict(step: int, tensors: list[torch.Tensor]) -> None:
        addresses.append([t.data_ptr() for t in tensors])
        oomph.evict(tensors)
        assert host_share(large(tensors)) > 0.9

    before = oomph.stats()["evicted_bytes"]
    assert_same_bits(train("cuda", evict), on_cpu())
    assert all(these == addresses[0] for these in addresses)
    # The first time all of it, then nothing has come back by itself.
    assert oomph.stats()["evicted_bytes"] - before == 6 * WEIGHT_BYTES


@card
def test_training_between_which_all_is_evicted_and_promoted_gives_the_cpus_bits():
    def there_and_back(step: int, tensors: list[torch.Tensor]) -> None:
        if step % 2 == 0:
            moved = oomph.evict(tensors)
            assert host_share(large(tensors)) > 0.9
        else:
            moved = oomph.promote(tensors)
            assert oomph.residency(large(tensors)).place == "device"
        assert moved.moved_bytes == 6 * WEIGHT_BYTES
        small = len(tensors) - len(large(tensors)) if step % 2 == 0 else 0
        assert len(moved.left) == small
        assert all("at most 1 MiB" in reason for reason in moved.left)

    assert_same_bits(train("cuda", there_and_back), on_cpu())


@card
def test_training_with_the_optimizers_state_on_the_host_gives_the_cpus_bits():
    def evict_state(step: int, tensors: list[torch.Tensor]) -> None:
        parameters, state = large(tensors)[:2], large(tensors)[2:]
        oomph.pin(parameters)
        assert oomph.evict(state).left == ()
        assert host_share(state) > 0.5
        assert host_share(parameters) < 0.5

    assert_same_bits(train("cuda", evict_state), on_cpu())


@card
def test_state_on_the_host_returns_when_memory_is_no_longer_short():
    full = [torch.empty(212 * MIB, dtype=torch.uint8, device="cuda")]
    shares = []

    def look(step: int, tensors: list[torch.Tensor]) -> None:
        _C.mark_idle([t.data_ptr() for t in tensors])
        shares.append(host_share(large(tensors)))
        if step == 1:
            full.clear()

    before = oomph.stats()
    assert_same_bits(train("cuda", look), on_cpu())
    assert shares[0] > 0.25
    assert shares[1] > 0.25
    assert shares[-1] == 0
    after = oomph.stats()
    assert after["rescues"] > before["rescues"]
    assert after["promoted_bytes"] - before["promoted_bytes"] >= 2 * WEIGHT_BYTES


@card
def test_what_fell_back_to_the_host_returns_when_there_is_room_at_the_peak_of_a_step():
    tensor = fallen_back(32 * MIB)
    other = fallen_back(32 * MIB)
    expected = tensor.cpu()
    assert oomph.residency([tensor, other]).place == "host"
    # Nothing uses it between steps; other addresses are of no concern.
    _C.mark_idle([tensor.data_ptr(), 0, expected.data_ptr()])
    oomph.step()
    oomph.step()
    assert oomph.residency(tensor).place == "device"
    assert oomph.residency(other).place == "host"
    assert torch.equal(tensor.cpu(), expected)


@card
def test_a_graph_works_on_tensors_that_moved_since_its_capture():
    x = torch.arange(2 * MIB, dtype=torch.float32, device="cuda")
    y = torch.zeros_like(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.copy_(x)
    oomph.evict([x])
    x.mul_(3)
    graph.replay()
    assert oomph.residency([x, y]) == oomph.Residency(8 * MIB, 8 * MIB)
    assert torch.equal(y.cpu(), torch.arange(2 * MIB, dtype=torch.float32) * 3)
    del graph


# ---- one tensor


@card
def test_a_tensor_moves_there_and_back_at_its_address():
    tensor = torch.arange(4 * MIB, dtype=torch.int32, device="cuda")
    address, expected = tensor.data_ptr(), tensor.cpu()
    assert oomph.evict(tensor) == oomph.Moved(16 * MIB, ())
    assert oomph.residency(tensor) == oomph.Residency(0, 16 * MIB)
    assert oomph.evict(tensor) == oomph.Moved(0, ())
    assert torch.equal(tensor.cpu(), expected)
    assert oomph.promote(tensor) == oomph.Moved(16 * MIB, ())
    assert oomph.residency(tensor).place == "device"
    assert tensor.data_ptr() == address
    assert torch.equal(tensor.cpu(), expected)


@card
def test_views_move_with_the_storage_that_they_share():
    tensor = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
    views = [tensor[5 * MIB : 6 * MIB], tensor.view(4, -1)[1]]
    assert oomph.evict(views).moved_bytes == 16 * MIB
    assert oomph.residency([tensor, *views]) == oomph.Residency(0, 16 * MIB)


@card
def test_a_pinned_tensor_is_left_until_it_is_unpinned():
    tensor = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
    oomph.evict(tensor)
    assert oomph.pin(t for t in [tensor]).moved_bytes == 16 * MIB
    with pytest.raises(ValueError, match="pinned to the device"):
        oomph.evict(tensor)
    assert "pinned" in oomph.evict([tensor]).left[0]
    oomph.unpin(tensor)
    assert oomph.evict(tensor).moved_bytes == 16 * MIB


# ---- what cannot move


@card
def test_a_tensor_on_the_cpu_does_not_move():
    for call in (oomph.evict, oomph.promote, oomph.pin, oomph.unpin, oomph.residency):
        with pytest.raises(ValueError, match=r"shape \(3,\) is on cpu"):
            call(torch.zeros(3))
    with pytest.raises(TypeError, match="expected a tensor, got int"):
        oomph.evict([3])


@card
def test_a_view_of_a_small_block_does_not_move_and_the_error_says_why():
    tensor = torch.zeros(1000, device="cuda")
    with pytest.raises(ValueError, match=r"shape \(10,\): it is at most 1 MiB and"):
        oomph.evict(tensor[:10])
    assert oomph.residency(tensor[:10]).place == "device"


@card
def test_nothing_moves_where_one_tensor_is_not_ours():
    from remote import sim

    ours = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
    pointer = ctypes.c_uint64()
    assert sim.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4096)) == 0

    class Foreign:
        __cuda_array_interface__ = {  # noqa: RUF012 (the protocol's)
            "shape": (4096,),
            "typestr": "|u1",
            "data": (pointer.value, False),
            "version": 3,
        }

    foreign = torch.as_tensor(Foreign(), device="cuda")
    assert foreign.data_ptr() == pointer.value
    with pytest.raises(ValueError, match="not oomph's"):
        oomph.evict([ours, foreign])
    assert oomph.residency(ours).place == "device"
    del foreign
    assert sim.cuMemFree_v2(pointer) == 0


@pytorchs_own
def test_without_oomph_the_error_says_that_the_memory_is_not_its():
    with pytest.raises(ValueError, match="not oomph's"):
        oomph.residency(torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda"))


@no_host_pages
def test_where_no_host_pages_can_be_mapped_the_error_says_so():
    tensor = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(RuntimeError, match="this machine has: pinned blocks"):
        oomph.evict(tensor)


@card
def test_nothing_moves_while_a_stream_captures():
    tensor = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="being captured"):
        oomph.evict(tensor)
    del graph
    assert oomph.residency(tensor).place == "device"


@card
def test_empty_tensors_and_none_at_all_take_nothing():
    empty = torch.zeros(0, device="cuda")
    assert oomph.evict(empty) == oomph.Moved(0, ())
    assert oomph.evict([]) == oomph.Moved(0, ())
    assert oomph.residency([]) == oomph.Residency(0, 0)
