"""No byte is lost: what tensors hold, bit for bit, whatever the allocator does.

The simulated card keeps real bytes here; kernels compute nothing, but copies between
CPU and GPU and on the GPU are real. Expected contents are slices of one random tensor.
"""

import os
import random
import threading
import time

import pytest
import torch
from support import MIB, Simulated

small_card = Simulated("256MiB,context=0,memory=real", "reserve:0,offload:off")
# Blocks of at most 1 MiB do not fall back to the host: half of the reserve is theirs.
spilling = Simulated(
    "192MiB,context=0,memory=real", "reserve:128MiB,host_limit:512MiB,host_ahead:8MiB"
)
pinned = Simulated(
    "192MiB,context=0,memory=real,host-pages=none", "reserve:128MiB,host_limit:512MiB"
)
limited = Simulated(
    "512MiB,context=0,memory=real", "reserve:0,host_limit:512MiB,device_limit:96MiB"
)

SOURCE_BYTES = 24 * MIB
STEPS = 250
SEED = int(os.environ.get("OOMPH_TEST_SEED", time.time_ns() % 1000000))
READS_MAX = 8  # copies to the CPU under way at a time


class Source:
    """Random bytes on the CPU, page-locked, of which tensors hold slices."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.bytes = torch.randint(
            256, (SOURCE_BYTES,), dtype=torch.uint8, generator=generator
        ).pin_memory()

    def slice(self, rng: random.Random, smallest: int) -> torch.Tensor:
        most = rng.choice([4096, MIB, 12 * MIB])
        size = smallest + rng.randrange(1, most)
        start = rng.randrange(SOURCE_BYTES - size)
        return self.bytes[start : start + size]


class Worker:
    """Fills tensors on a stream, copies them to others, checks and frees them."""

    def __init__(
        self, source: Source, rng: random.Random, most_bytes: int, smallest: int
    ) -> None:
        self.source, self.rng = source, rng
        self.most_bytes, self.smallest = most_bytes, smallest
        self.errors = 0
        self.stream = torch.cuda.Stream()
        self.other = torch.cuda.Stream()
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.read: list[tuple[torch.Tensor, torch.Tensor]] = []  # not yet compared

    def bytes_kept(self) -> int:
        return sum(tensor.numel() for tensor, _ in self.kept)

    def fill(self) -> None:
        wanted = self.source.slice(self.rng, self.smallest)
        tensor = torch.empty_like(wanted, device="cuda")
        tensor.copy_(wanted, non_blocking=True)
        self.kept.append((tensor, wanted))

    def copy(self) -> None:
        """A copy on another stream, which then is used on this one."""
        tensor, wanted = self.rng.choice(self.kept)
        self.other.wait_stream(self.stream)
        with torch.cuda.stream(self.other):
            copy = tensor.clone()
        tensor.record_stream(self.other)
        self.stream.wait_stream(self.other)
        copy.record_stream(self.stream)
        self.kept.append((copy, wanted))

    def overwrite(self) -> None:
        tensor, _ = self.kept.pop(self.rng.randrange(len(self.kept)))
        start = self.rng.randrange(SOURCE_BYTES - tensor.numel())
        wanted = self.source.bytes[start : start + tensor.numel()]
        tensor.copy_(wanted, non_blocking=True)
        self.kept.append((tensor, wanted))

    def check(self) -> None:
        """Reads a tensor back and frees it, before the copy has begun."""
        tensor, wanted = self.kept.pop(self.rng.randrange(len(self.kept)))
        self.read.append((tensor.to("cpu", non_blocking=True), wanted))
        if len(self.read) == READS_MAX:
            self.compare()

    def compare(self) -> None:
        self.stream.synchronize()
        for found, wanted in self.read:
            assert torch.equal(found, wanted), f"{wanted.numel()} bytes changed"
        self.read.clear()

    def drop(self) -> None:
        self.kept.pop(self.rng.randrange(len(self.kept)))

    def run(self, steps: int) -> None:
        with torch.cuda.stream(self.stream):
            for _ in range(steps):
                while self.bytes_kept() > self.most_bytes:
                    self.check()
                actions = [self.fill, self.fill]
                if self.bytes_kept() > self.most_bytes * 7 // 8:
                    actions += [self.copy, self.overwrite, self.check, self.drop]
                try:
                    self.rng.choice(actions)()
                except torch.OutOfMemoryError:
                    self.errors += 1
                    self.most_bytes = max(MIB, self.bytes_kept())
                if self.rng.random() < 0.02:
                    torch.cuda.empty_cache()
            while self.kept:
                self.check()
            self.compare()


def work(
    thread_count: int,
    most_bytes: int,
    smallest: int = 0,
    may_fail: bool = False,
    seed: int = SEED,
) -> None:
    print(f"OOMPH_TEST_SEED={SEED}")  # shown when a test fails
    source = Source(seed)
    workers = [
        Worker(
            source, random.Random(f"{seed}.{i}"), most_bytes // thread_count, smallest
        )
        for i in range(thread_count)
    ]
    errors = []

    def guarded(worker: Worker) -> None:
        try:
            worker.run(STEPS)
        except BaseException as error:
            errors.append(error)
            worker.kept.clear()
            worker.read.clear()

    threads = [threading.Thread(target=guarded, args=(w,)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert may_fail or sum(w.errors for w in workers) == 0


@small_card
def test_contents_are_kept_while_pages_move_between_streams():
    import oomph

    # The second round has other streams, and finds the first one's pages cached.
    for seed in (SEED, SEED + 1):
        work(thread_count=1, most_bytes=300 * MIB, may_fail=True, seed=seed)
    assert oomph.stats()["pages_remapped"] > 0


@pytest.mark.long
@small_card
def test_contents_are_kept_while_threads_share_a_card():
    work(thread_count=4, most_bytes=230 * MIB, may_fail=True)


@spilling
def test_contents_are_kept_while_blocks_fall_back_to_the_host():
    import oomph

    work(thread_count=1, most_bytes=300 * MIB)
    assert oomph.stats()["rescues"] > 0


@spilling
def test_contents_are_kept_while_threads_are_rescued():
    import oomph

    work(thread_count=4, most_bytes=300 * MIB)
    assert oomph.stats()["rescues"] > 0


@pinned
def test_contents_are_kept_in_pinned_blocks():
    import oomph

    work(thread_count=2, most_bytes=300 * MIB)
    assert oomph.stats()["host_kind"] == "pinned blocks"
    assert oomph.stats()["rescues"] > 0


@pytest.mark.long
@limited
def test_contents_are_kept_under_a_device_limit():
    import oomph

    # There is no reserve within the limit, so no small blocks.
    work(thread_count=2, most_bytes=250 * MIB, smallest=MIB)
    assert oomph.stats()["device_bytes_peak"] <= 96 * MIB


@small_card
def test_contents_are_kept_from_step_to_step_while_a_plan_is_in_force():
    import oomph

    source = Source(1)
    before = oomph.stats()
    for _ in range(5):
        live = []
        for i in range(40):  # at most 240 MiB at a time, of different sizes
            size = (1 + i * 7 % 24) * MIB
            while sum(tensor.numel() for tensor, _ in live) + size > 240 * MIB:
                tensor, wanted = live.pop(i * 5 % len(live))
                assert torch.equal(tensor.cpu(), wanted)
                del tensor
            wanted = source.bytes[i * 4096 :][: size - i * 4096]
            live.append((wanted.to("cuda", non_blocking=True), wanted))
        for tensor, wanted in live:
            assert torch.equal(tensor.cpu(), wanted)
        del live, tensor
        oomph.step()
    assert oomph.stats()["planned_hits"] > before["planned_hits"]
    assert oomph.stats()["pages_remapped"] > before["pages_remapped"]


@spilling
def test_a_block_that_fell_back_to_the_host_holds_what_a_kernelless_copy_put_there():
    import oomph

    source = Source(2)
    kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    wanted = source.bytes[: 8 * MIB]
    a = wanted.to("cuda")
    assert oomph.stats()["host_block_bytes"] == 8 * MIB
    b = a.clone()  # from host page to host page
    del kept
    c = b.clone()  # back onto the device
    assert torch.equal(c.cpu(), wanted)
    assert torch.equal(a.cpu(), wanted)
    del a, b, c


@small_card
def test_a_module_keeps_its_parameters():
    module = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(20)))
    wanted = {name: value.clone() for name, value in module.state_dict().items()}
    module.cuda()
    for _ in range(3):
        filler = [
            torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
            for size in (100, 60, 40)
        ]
        del filler
        torch.empty(220 * MIB, dtype=torch.uint8, device="cuda")
    for name, value in module.state_dict().items():
        assert torch.equal(value.cpu(), wanted[name])


@small_card
@pytest.mark.parametrize("non_blocking", [False, True])
def test_a_resized_storage_keeps_its_bytes(non_blocking):
    wanted = Source(3).bytes[: 5 * MIB]
    a = wanted.to("cuda", non_blocking=non_blocking)
    a.untyped_storage().resize_(64 * MIB)
    assert torch.equal(a.cpu(), wanted)


@pytest.mark.long
@pinned
def test_page_locked_blocks_make_room_for_larger_ones():
    """Each of them takes most of the limit, and is idle when the next one comes."""
    import oomph

    full = torch.full((48 * MIB,), 7, dtype=torch.uint8).to("cuda")
    oomph.step()  # what other tests left on the host is given back
    for mib in (300, 310, 320, 400):
        wanted = torch.full((mib * MIB,), mib % 251, dtype=torch.uint8)
        assert torch.equal(wanted.to("cuda").cpu(), wanted)
        assert oomph.stats()["host_bytes"] == mib * MIB
    assert torch.all(full.cpu() == 7)
