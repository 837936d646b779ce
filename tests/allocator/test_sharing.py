"""CUDA tensors and events that two processes share, by torch.multiprocessing.

Most tests run with oomph and with PyTorch's own allocators: the simulation and oomph
must both do what PyTorch promises.
"""

from __future__ import annotations

import os
import sys
import time

import pytest
import torch
from peers import Peer, peer_of
from support import MIB, Simulated, execute, on_each

CARD = "256MiB,context=0,memory=real"
simulated = Simulated(CARD, "reserve:0,offload:off")
spilling = Simulated(CARD, "reserve:0,host_limit:256MiB,host_ahead:0")
two = Simulated(f"{CARD},devices=2", "reserve:0,offload:off")
WAYS = {
    "oomph": simulated,
    "native": Simulated(CARD, None),
    "expandable": Simulated(CARD, None, PYTORCH_ALLOC_CONF="expandable_segments:True"),
}
everywhere = on_each(WAYS)
COMPUTING = "256MiB,context=0,memory=values"
computing = on_each(
    {
        "oomph": Simulated(COMPUTING, "reserve:0,offload:off"),
        "native": Simulated(COMPUTING, None),
    }
)


# ---- the other process: it keeps tensors by name, and does what it is asked


class Other:
    """What the other process can be asked for."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def keep(self, name: str, tensor: torch.Tensor) -> None:
        self.kept[name] = tensor

    def read(self, name: str) -> tuple[int, int, int]:
        """The device, the smallest and the largest value."""
        tensor = self.kept[name].cpu()
        return self.kept[name].device.index, int(tensor.min()), int(tensor.max())

    def write(self, name: str, value: int) -> None:
        self.kept[name].copy_(full(value, self.kept[name].numel()))
        torch.cuda.synchronize()

    def pass_on(self, name: str) -> None:
        self.kept[name].untyped_storage()._share_cuda_()

    def drop(self, name: str) -> None:
        del self.kept[name]

    def fill_card(self) -> int:
        """Takes and frees all there is; gives how much that was."""
        taken = []
        try:
            while True:
                taken.append(take(2 * MIB))
        except torch.OutOfMemoryError:
            return len(taken) * 2 * MIB

    def wait_for(self, handle: bytes) -> bool:
        event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), handle)
        event.wait()
        event.synchronize()
        return event.query()

    def double_behind(self, name: str, handle: bytes) -> bool:
        """Whether it was done at once: a stream of its own waits, and records again."""
        event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), handle)
        with torch.cuda.stream(torch.cuda.Stream()):
            event.wait()
            self.kept[name].mul_(2)
            event.record()
        return event.query()


def peer() -> Peer:
    """The one other process of this process."""
    return peer_of(Other)


def full(value: int, size_bytes: int) -> torch.Tensor:
    return torch.full((size_bytes,), value, dtype=torch.uint8)


def take(size_bytes: int, device: int = 0) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{device}")


def holds(tensor: torch.Tensor, value: int) -> bool:
    return torch.equal(tensor.cpu(), full(value, tensor.numel()))


# ---- the tests


@pytest.mark.long
@everywhere
def test_a_tensor_is_read_and_written_by_the_other_process():
    a = full(5, 10 * MIB + 1000).cuda()
    peer()("keep", "a", a)
    assert peer()("read", "a") == (0, 5, 5)
    peer()("write", "a", 7)
    assert holds(a, 7)
    a.copy_(full(9, a.numel()))
    torch.cuda.synchronize()
    assert peer()("read", "a") == (0, 9, 9)
    peer()("drop", "a")


@everywhere
def test_memory_stays_as_long_as_the_other_process_has_it():
    a = full(5, 10 * MIB).cuda()
    peer()("keep", "a", a)
    del a
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == 10 * MIB
    b = full(6, 100 * MIB).cuda()
    assert peer()("read", "a") == (0, 5, 5)
    peer()("drop", "a")
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == 100 * MIB
    assert holds(b, 6)


@everywhere
def test_the_other_process_may_drop_a_tensor_first():
    a = full(5, 10 * MIB).cuda()
    peer()("keep", "a", a)
    peer()("drop", "a")
    torch.cuda.ipc_collect()
    assert holds(a, 5)
    assert torch.cuda.memory_allocated() == 10 * MIB


@everywhere
def test_small_tensors_of_one_page_and_views_are_shared_each_for_itself():
    a, b = full(1, 1000).cuda(), full(2, 1000).cuda()
    peer()("keep", "a", a)
    peer()("keep", "b", b[100:200])
    peer()("write", "b", 3)
    assert peer()("read", "a") == (0, 1, 1)
    assert holds(a, 1)
    assert holds(b[:100], 2) and holds(b[100:200], 3) and holds(b[200:], 2)
    peer()("drop", "a")
    peer()("drop", "b")


@everywhere
def test_a_tensor_may_be_shared_again():
    a = full(5, 4 * MIB).cuda()
    peer()("keep", "a", a)
    peer()("keep", "again", a)
    peer()("write", "a", 6)
    assert peer()("read", "again") == (0, 6, 6)
    peer()("drop", "a")
    assert peer()("read", "again") == (0, 6, 6)
    peer()("drop", "again")
    peer()("keep", "a", a)
    assert peer()("read", "a") == (0, 6, 6)
    peer()("drop", "a")


@everywhere
def test_share_memory_leaves_a_cuda_tensor_as_it_is():
    a = full(5, 4 * MIB).cuda()
    assert a.share_memory_() is a
    assert a.is_shared()
    assert holds(a, 5)


@everywhere
def test_an_event_is_waited_for_by_the_other_process():
    event = torch.cuda.Event(interprocess=True)
    event.record()
    assert peer()("wait_for", event.ipc_handle()) is True


@pytest.mark.long
@computing
def test_work_of_two_processes_takes_turns_by_an_event():
    a, wanted = torch.ones(1000, device="cuda"), 1
    event = torch.cuda.Event(interprocess=True)
    peer()("keep", "a", a)
    for _ in range(5):
        torch.cuda._sleep(10**8)
        a.add_(1)
        event.record()
        assert not event.query()
        assert not peer()("double_behind", "a", event.ipc_handle())
        event.wait()
        wanted = (wanted + 1) * 2
        copied = a.clone()
    assert copied.tolist() == [wanted] * 1000
    peer()("drop", "a")


@pytest.mark.long
@simulated
def test_a_shared_tensor_keeps_its_pages_when_memory_is_short():
    first = full(1, 60 * MIB).cuda()
    a = full(5, 10 * MIB).cuda()
    rest = full(2, 180 * MIB).cuda()
    peer()("keep", "a", a)
    del first
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # takes the pages of the hole before `a`
        b = take(40 * MIB)
        b.copy_(full(3, 40 * MIB))
    torch.cuda.synchronize()
    assert peer()("read", "a") == (0, 5, 5)
    peer()("write", "a", 6)
    assert holds(a, 6) and holds(rest, 2) and holds(b, 3)
    peer()("drop", "a")


@simulated
def test_memory_that_was_shared_serves_again_when_both_have_dropped_it():
    a = full(5, 100 * MIB).cuda()
    peer()("keep", "a", a)
    peer()("drop", "a")
    del a
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        b = take(250 * MIB)  # the ladder asks PyTorch to free what it sent
    assert torch.cuda.memory_allocated() == 250 * MIB
    del b


@simulated
def test_what_the_other_process_imports_takes_nothing_of_its_own_memory():
    a = full(5, 200 * MIB).cuda()
    peer()("keep", "a", a)
    assert peer()("fill_card") == 256 * MIB
    assert peer()("read", "a") == (0, 5, 5)
    peer()("drop", "a")


@simulated
def test_an_imported_tensor_is_freed_for_the_exporter():
    from remote import sim_stats

    a = full(5, 100 * MIB).cuda()
    peer()("keep", "a", a)
    peer()("drop", "a")
    del a
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    assert sim_stats().used_bytes == 0


@everywhere
def test_what_was_received_cannot_be_passed_on():
    a = full(5, 4 * MIB).cuda()
    peer()("keep", "a", a)
    with pytest.raises(RuntimeError, match="received from another process"):
        peer()("pass_on", "a")
    peer()("drop", "a")


@two
def test_a_tensor_of_the_second_device_is_shared_from_there():
    a = full(5, 4 * MIB).cuda(1)
    peer()("keep", "a", a)
    assert peer()("read", "a") == (1, 5, 5)
    peer()("drop", "a")


@spilling
def test_a_tensor_on_the_host_is_not_shared_and_the_error_says_why():
    filled = take(250 * MIB)
    fallen_back = take(20 * MIB)
    with pytest.raises(RuntimeError, match="lies on the host and cannot be shared"):
        fallen_back.untyped_storage()._share_cuda_()
    del filled, fallen_back


def peers_pid() -> int:
    return peer().process.pid


def test_the_other_process_ends_with_the_first():
    simulated = Simulated(CARD, "reserve:0,offload:off")
    pid = simulated.call(__name__, "peers_pid")
    assert os.path.exists(f"/proc/{pid}")
    simulated.stop()
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")


ARRIVING = """
import sys
import torch
import torch.multiprocessing as multiprocessing

def child(source, sink, uses_cuda):
    import oomph
    if uses_cuda:
        torch.ones(1, device="cuda")
    try:
        tensor = source.get(timeout=60)
        sink.put((oomph.is_installed(), oomph.stats()["allocator"], tensor.tolist()))
    except RuntimeError as error:
        sink.put(str(error))

if __name__ == "__main__":
    import oomph
    oomph.install(device_limit="200MiB", offload="off")
    context = multiprocessing.get_context("spawn")
    source, sink = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(source, sink, sys.argv[1] == "True"))
    process.start()
    tensor = torch.arange(3.0, device="cuda")
    source.put(tensor)
    print(sink.get(timeout=60))
    process.join()
"""


@pytest.mark.long
@pytest.mark.parametrize("uses_cuda", [False, True])
def test_a_process_that_gets_a_tensor_gets_oomph_unless_it_uses_cuda(
    uses_cuda, tmp_path
):
    script = tmp_path / "script.py"
    script.write_text(ARRIVING)
    words = [sys.executable, str(script), str(uses_cuda)]
    done = execute(*words, anew=True, OOMPH_SIMULATE=COMPUTING)
    if uses_cuda:
        why = "cannot open a CUDA tensor that came from a process with oomph"
        assert why in done.out, done.said
    else:
        assert done.out == "(True, 'oomph', [0.0, 1.0, 2.0])\n", done.said
