"""The simulated GPU, as the unmodified PyTorch sees it."""

import itertools
import json
import re

import pytest
import torch
from support import GIB, MIB, ROOT, Simulated, run

CARD = "4GiB,devices=2,cc=8.6,host=1GiB,link=10GB/s,context=256MiB,name=A card"

simulated = Simulated(CARD, None)
without_kernels = Simulated("1GiB,kernels=error", None)


def take(size_bytes: int, device: str = "cuda") -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


# ---- the card


@simulated
def test_the_device_has_the_memory_asked_for():
    assert torch.cuda.get_device_properties(0).total_memory == 4 * GIB
    free, total = torch.cuda.mem_get_info()
    assert total == 4 * GIB
    assert free == 4 * GIB - 256 * MIB  # less what the context takes


@simulated
def test_there_are_as_many_devices_as_asked_for():
    assert torch.cuda.device_count() == 2
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.empty(1, device="cuda:2")


@simulated
def test_the_device_has_the_name_and_the_capability_asked_for():
    assert torch.cuda.get_device_name() == "A card"
    assert torch.cuda.get_device_capability() == (8, 6)


@simulated
def test_pinned_memory_ends_where_the_hosts_memory_ends():
    block = torch.empty(GIB // 2, dtype=torch.uint8, pin_memory=True)
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    del block
    torch._C._host_emptyCache()


@simulated
@pytest.mark.parametrize("to_host", [False, True])
def test_a_copy_takes_the_time_of_the_link(to_host):
    host = torch.empty(100_000_000, dtype=torch.uint8, pin_memory=True)
    device = take(100_000_000)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    if to_host:
        host.copy_(device, non_blocking=True)
    else:
        device.copy_(host, non_blocking=True)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(10, rel=0.01)  # ms, at 10 GB/s


# ---- memory


@simulated
def test_the_error_where_memory_ends_is_pytorchs_own():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(5 * GIB)
    assert re.match(
        r"CUDA out of memory\. Tried to allocate 5\.00 GiB\. GPU 0 has a total "
        r"capacity of 4\.00 GiB of which 3\.75 GiB is free\. ",
        str(caught.value),
    )


@simulated
def test_the_last_byte_can_be_had_and_no_more():
    free = torch.cuda.mem_get_info()[0]
    block = take(free)
    assert torch.cuda.mem_get_info()[0] == 0
    with pytest.raises(torch.OutOfMemoryError):
        take(2 * MIB)
    del block


@simulated
def test_pytorch_counts_its_memory_as_on_a_gpu():
    block = torch.empty(1000, device="cuda")
    assert torch.cuda.memory_allocated() == 4096
    assert torch.cuda.memory_reserved() == 2 * MIB
    del block


@simulated
def test_expandable_segments_work():
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    block = take(30 * MIB)
    assert any(s["is_expandable"] for s in torch.cuda.memory_snapshot())
    del block
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")


@simulated
def test_what_is_read_from_the_device_is_zero():
    x = torch.ones(3000, device="cuda") + 0.5
    assert x[:3].tolist() == [0, 0, 0]
    assert x.sum().item() == 0


# ---- streams, events and graphs


@simulated
def test_a_kernel_takes_time():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    block = take(4096)
    start.record()
    block.fill_(1)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0


@simulated
def test_an_event_is_done_when_its_work_is_and_not_before():
    host = torch.empty(100 * MIB, dtype=torch.uint8, pin_memory=True)
    block = take(100 * MIB)
    event = torch.cuda.Event()
    block.copy_(host, non_blocking=True)
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()


@simulated
def test_asking_for_an_event_again_and_again_ends():
    host = torch.empty(100 * MIB, dtype=torch.uint8, pin_memory=True)
    block = take(100 * MIB)
    event = torch.cuda.Event()
    block.copy_(host, non_blocking=True)
    event.record()
    assert any(event.query() for _ in range(100_000))


@simulated
def test_a_stream_waits_for_another_when_told_to():
    host = torch.empty(100 * MIB, dtype=torch.uint8, pin_memory=True)
    block = take(100 * MIB)
    busy, free, waiting = (torch.cuda.Stream() for _ in range(3))
    with torch.cuda.stream(busy):
        block.copy_(host, non_blocking=True)
    waiting.wait_stream(busy)
    assert free.query()
    assert not waiting.query()
    waiting.synchronize()
    assert busy.query()


@simulated
def test_a_block_that_a_stream_uses_is_not_reused_before_it_is_done():
    host = torch.empty(100 * MIB, dtype=torch.uint8, pin_memory=True)
    side = torch.cuda.Stream()
    block = take(100 * MIB)
    address = block.data_ptr()
    with torch.cuda.stream(side):
        block.copy_(host, non_blocking=True)
    block.record_stream(side)
    del block
    other = take(100 * MIB)
    assert other.data_ptr() != address
    del other
    side.synchronize()
    torch.cuda.synchronize()
    del host


@simulated
def test_a_graph_is_captured_and_replayed():
    from remote import sim_stats

    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(1000, device="cuda")
    with torch.cuda.graph(graph):
        y = x * 2 + 1
    before = sim_stats().executed_count
    graph.replay()
    torch.cuda.synchronize()
    assert sim_stats().executed_count >= before + 2
    del graph, y


@simulated
def test_a_wait_during_a_capture_is_an_error():
    with (
        pytest.raises(RuntimeError, match="previous error during capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        torch.cuda.synchronize()
    torch.cuda.synchronize()


# ---- two devices


@simulated
def test_devices_have_memory_of_their_own():
    block = take(3 * GIB, "cuda:1")
    assert torch.cuda.mem_get_info(1)[0] < GIB
    assert torch.cuda.mem_get_info(0)[0] > 3 * GIB
    del block


@simulated
def test_devices_copy_to_each_other():
    from remote import sim_stats

    assert torch.cuda.can_device_access_peer(0, 1)
    block = torch.ones(1000, device="cuda:0")
    before = sim_stats().d2d_bytes
    other = block.to("cuda:1")
    torch.cuda.synchronize(1)
    assert other.device.index == 1
    assert sim_stats().d2d_bytes == before + 4000


# ---- what is not simulated


@simulated
def test_a_green_context_is_an_error_and_no_crash():
    with pytest.raises(RuntimeError, match="cuGreenCtxCreate is not part of"):
        torch.cuda.green_contexts.GreenContext.create(num_sms=8)


@without_kernels
def test_kernels_that_must_not_run_are_named():
    with pytest.raises(RuntimeError, match=r"not supported: \w*add\w* is not part of"):
        torch.empty(4, device="cuda").add_(1)


# ---- determinism

STEPS = """
import argparse, json, sys
import torch
sys.path.insert(0, sys.argv[1])
import train_gpt

arguments = argparse.Namespace(
    layers=2, heads=2, width=64, vocabulary=512, block=32, batch=4, dropout=0.1,
    checkpoint=False,
)
torch.manual_seed(0)
model = train_gpt.GPT(arguments).cuda()
optimizer = torch.optim.AdamW(model.parameters())
torch.cuda.memory._record_memory_history(stacks="python", context=None)
for _ in range(3):
    tokens = torch.randint(256, (4, 32)).pin_memory().to("cuda", non_blocking=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tokens, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
events = torch.cuda.memory._snapshot()["device_traces"][0]
print(json.dumps([(event["action"], event["size"]) for event in events]))
"""


def trace_of_training() -> list[list]:
    """Actions and sizes. Frees that follow each other are sorted: autocast keeps its
    copies of weights in an order that depends on addresses of the host."""
    result = run(STEPS, ROOT / "examples", card="1GiB")
    assert result.code == 0, result.err
    trace = [e for e in json.loads(result.out) if e[0] != "free_completed"]
    groups = itertools.groupby(trace, lambda event: event[0])
    return [
        event
        for action, group in groups
        for event in (sorted(group) if action == "free_requested" else group)
    ]


def test_a_training_step_allocates_the_same_in_every_run():
    first, second = trace_of_training(), trace_of_training()
    assert len(first) > 500
    assert first == second
