"""Memory history beside the native allocator's: the same program, event by event."""

import pytest
import torch
from support import MIB, Simulated, on_each

CARD = "1GiB,context=0"
native = Simulated(CARD, None)
expandable = Simulated(CARD, None, PYTORCH_ALLOC_CONF="expandable_segments:True")
ours = Simulated(CARD, "reserve:0,offload:off")
in_each_mode = on_each({"native": native, "expandable": expandable, "oomph": ours})


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def record(**options) -> None:
    torch.cuda.memory._record_memory_history(**options)


def trace() -> list[dict]:
    return torch.cuda.memory._snapshot()["device_traces"][0]


def caller(entry: dict) -> str:
    """The function next to the one that all blocks are taken by."""
    names = [frame["name"] for frame in entry.get("frames", [])]
    return next((name for name in names if name != "take"), "")


def drop(blocks: list) -> None:
    blocks.clear()


def drop_used_elsewhere(blocks: list) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
    for block in blocks:
        block.record_stream(side)
    blocks.clear()
    side.synchronize()


def run_out() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        take(1 << 40)


def program(context: str | None) -> list[tuple[str, int, str]]:
    """What becomes of some blocks: each event, its size, and whose it is."""
    torch.cuda.empty_cache()
    record(context=context, stacks="python")
    blocks = [take(4 * MIB), take(1000)]
    drop(blocks)
    torch.cuda.empty_cache()
    blocks = [take(30 * MIB)]
    drop_used_elsewhere(blocks)
    torch.cuda.empty_cache()
    run_out()
    events = [
        (
            entry["action"],
            0 if entry["action"].startswith("segment") else entry["size"],
            caller(entry),
        )
        for entry in trace()
    ]
    record(enabled=None)
    return events


@pytest.mark.long
@pytest.mark.parametrize("context", ["all", "alloc", "state", None])
def test_each_event_is_somebodys_as_in_the_native_trace(context):
    wanted = expandable.call(__name__, "program", context)
    assert [action for action, _, _ in wanted].count("segment_unmap") == 3
    assert any(name for _, _, name in wanted) == (context in ("all", "alloc"))
    assert ours.call(__name__, "program", context) == wanted


@in_each_mode
def test_an_action_that_does_not_exist_is_refused_at_once():
    record(context=None)
    kept = take(1000)
    with pytest.raises(RuntimeError, match="Unknown TraceEntry action: aloc"):
        record(context=None, skip_actions=["aloc"])
    del kept
    assert [entry["action"] for entry in trace() if entry["size"] == 1000] == [
        *("alloc", "free_requested", "free_completed"),
    ]
    record(enabled=None)


@in_each_mode
def test_blocks_keep_the_stack_that_the_trace_is_not_to_have():
    record(context="state", stacks="python")
    block = take(4 * MIB)
    found = [
        caller(seen)
        for segment in torch.cuda.memory_snapshot()
        for seen in segment["blocks"]
        if seen["address"] == block.data_ptr()
    ]
    assert found == ["test_blocks_keep_the_stack_that_the_trace_is_not_to_have"]
    (alloc,) = (entry for entry in trace() if entry["action"] == "alloc")
    assert caller(alloc) == ""
    record(enabled=None)
