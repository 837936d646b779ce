"""Memory that other streams use without a word to the allocator, and with one.

PyTorch's allocator keeps what is freed for the stream it was allocated on, and waits
for the device before others get it. Programs rely on it: they use a block on any
stream, free it, and only see to it that its own stream waits before it goes on. All
bodies hold with PyTorch's allocator as well.
"""

import gc
import sys

import pytest
import torch
from support import MIB, ROOT, Simulated, execute, on_each

ROOMY = "gpu=rtx4090,context=0,memory=values"
short = {
    "native": Simulated(f"4GiB,{ROOMY}", None),
    "oomph": Simulated(f"192MiB,{ROOMY}", "reserve:0,offload:off"),
    "oomph on host": Simulated(f"128MiB,{ROOMY}", "reserve:0"),
}
# CUDA 13.2 starts no kernel on that driver, with PyTorch's own allocator, too.
if tuple(map(int, torch.version.cuda.split("."))) < (13, 2):
    short["old driver"] = Simulated(
        f"192MiB,{ROOMY},driver=12040", "reserve:0,offload:off"
    )


def made(size_bytes: int, value: float) -> torch.Tensor:
    return torch.full((size_bytes // 4,), float(value), device="cuda")


@on_each(short)
def test_memory_of_a_side_stream_is_read_on_the_default_stream():
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    extremes = []
    for step in range(1, 4):
        with torch.cuda.stream(side):
            gradients = made(120 * MIB, step)  # as by reduce-scatter
        main.wait_stream(side)
        torch.cuda._sleep(1000)
        extremes.append(torch.aminmax(gradients))
        del gradients
        activations = made(64 * MIB, -1)
        side.wait_stream(main)
        del activations
    assert [(low.item(), high.item()) for low, high in extremes] == [
        (step, step) for step in range(1, 4)
    ]


@on_each(short)
def test_batches_are_loaded_on_a_stream_of_their_own():
    main, loading = torch.cuda.current_stream(), torch.cuda.Stream()

    def batches(count):
        batch = None
        for number in range(1, count + 1):
            loading.wait_stream(main)
            with torch.cuda.stream(loading):
                coming = made(24 * MIB, number)
            if batch is not None:
                yield batch
            main.wait_stream(loading)
            batch = coming
        yield batch

    extremes = []
    for batch in batches(6):
        kept = [batch + i for i in range(4)]
        while kept:
            last = kept.pop()
            extremes.append(torch.aminmax(last.sub_(batch)))
    assert [(low.item(), high.item()) for low, high in extremes] == [
        (i, i) for i in (3, 2, 1, 0)
    ] * 6


@on_each(short)
def test_a_stream_that_never_allocates_reads_memory_that_was_freed():
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    reading = torch.cuda.Stream()
    result = made(48 * MIB, 0)
    with torch.cuda.stream(side):
        freed = made(48 * MIB, 7)
    reading.wait_stream(side)
    reading.wait_stream(main)
    with torch.cuda.stream(reading):
        torch.cuda._sleep(10_000_000)
        result.copy_(freed)
    del freed
    others = [made(56 * MIB, -1) for _ in range(2)]
    side.wait_stream(reading)
    main.wait_stream(reading)
    assert result.eq(7).all().item()
    del others


@on_each(short)
def test_a_graph_is_dropped_while_it_is_replayed():
    graph = torch.cuda.CUDAGraph()
    x = made(4 * MIB, 2)
    with torch.cuda.graph(graph):
        large = x.repeat(16)
        large.add_(1)
        out = large[: MIB // 4].clone()
        del large
    torch.cuda._sleep(1000)
    graph.replay()
    result = out.clone()
    del graph, out
    gc.collect()
    others = [made(56 * MIB, -1) for _ in range(2)]
    assert result.eq(3).all().item()
    assert all(other.eq(-1).all().item() for other in others)


@on_each(short)
def test_graphs_come_and_go_after_a_capture_that_failed():
    with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        made(MIB, 1).sum().item()  # no graph can wait for a value
    torch.cuda.synchronize()
    for number in range(12):
        graph = torch.cuda.CUDAGraph()
        x = made(MIB, number)
        with torch.cuda.graph(graph):
            y = x.repeat(64).add_(1)[: MIB // 4].clone()
        graph.replay()
        assert y.eq(number + 1).all().item()
        del graph, x, y


two = {
    "native": Simulated(f"4GiB,devices=2,{ROOMY}", None),
    "oomph": Simulated(f"192MiB,devices=2,{ROOMY}", "reserve:0,offload:off"),
}


@on_each(two)
def test_a_block_is_used_on_a_stream_of_another_device():
    other = torch.cuda.Stream("cuda:1")
    for number in range(1, 6):
        lent = made(96 * MIB, number)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.device(1), torch.cuda.stream(other):
            torch.cuda._sleep(1000)
            copied = lent[: 4 * MIB].to("cuda:1", non_blocking=True)
        lent.record_stream(other)
        del lent
        new = made(128 * MIB, -1)
        torch.cuda.default_stream(1).wait_stream(other)
        assert copied.eq(number).all().item()
        assert new.eq(-1).all().item()
        del new, copied
    torch.cuda.synchronize(1)
    made(512, 0)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_stats(0)["active_bytes.all.current"] == 0


# ---- FSDP2


def train_fsdp2(card: str, conf: str | None, *arguments: object) -> str:
    """What the script prints: losses and norms of gradients, in full."""
    script = ROOT / "tests" / "scripts" / "train_fsdp2.py"
    done = execute(
        *(sys.executable, script, *map(str, arguments)),
        card=f"{card},context=0,memory=values",
        conf=conf,
    )
    assert done.code == 0, done.said
    return done.out


@pytest.fixture(scope="module")
def with_room() -> str:
    return train_fsdp2("4GiB,gpu=rtx4090", None, 1024, 3)


@pytest.mark.long
@pytest.mark.parametrize(
    "conf", ["reserve:0,device_limit:223MiB,offload:off", "device_limit:215MiB"]
)
def test_fsdp2_computes_what_it_computes_with_room(with_room, conf):
    assert train_fsdp2("1GiB,gpu=rtx4090", conf, 1024, 3) == with_room
