"""Memory history and snapshots, and what reads them."""

import pickle
import threading

import pytest
import torch
from support import GIB, MIB, Simulated
from torch.cuda import _memory_viz as viz

simulated = Simulated("1GiB,context=0", "reserve:0,offload:off")


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


class History:
    """Records while it is entered; the trace of device 0 is read at the end."""

    def __init__(self, **options) -> None:
        self.options = options

    def __enter__(self) -> "History":
        torch.cuda.memory._record_memory_history(**self.options)
        return self

    def __exit__(self, *_) -> None:
        torch.cuda.memory._record_memory_history(enabled=None)

    def trace(self) -> list[dict]:
        return torch.cuda.memory._snapshot()["device_traces"][0]

    def actions(self, *names: str) -> list[tuple[str, int]]:
        wanted = names or ("alloc", "free_requested", "free_completed")
        return [
            (entry["action"], entry["size"])
            for entry in self.trace()
            if entry["action"] in wanted
        ]


# ---- The trace


@simulated
def test_the_trace_has_each_allocation_and_free_with_the_size_asked_for():
    with History(context=None) as history:
        a = take(3 * MIB + 1)
        del a
        assert history.actions() == [
            ("alloc", 3 * MIB + 1),
            ("free_requested", 3 * MIB + 1),
            ("free_completed", 3 * MIB + 1),
        ]


@simulated
def test_a_free_is_completed_once_its_other_streams_are_done():
    from remote import sim

    side = torch.cuda.Stream()
    a = take(4 * MIB)
    sim.oomph_sim_hold(side.cuda_stream)
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
    a.record_stream(side)
    with History(context=None) as history:
        del a
        assert history.actions() == [("free_requested", 4 * MIB)]
        sim.oomph_sim_release(side.cuda_stream)
        side.synchronize()
        torch.cuda.empty_cache()
        assert history.actions("free_completed") == [("free_completed", 4 * MIB)]


@simulated
def test_the_trace_tells_what_is_mapped_and_unmapped():
    with History(context=None) as history:
        a = take(4 * MIB)
        del a
        torch.cuda.empty_cache()
        assert history.actions("segment_map", "segment_unmap") == [
            ("segment_map", 4 * MIB),
            ("segment_unmap", 4 * MIB),
        ]


@simulated
def test_the_trace_names_the_stream_of_each_event():
    side = torch.cuda.Stream()
    with History(context=None) as history:
        with torch.cuda.stream(side):
            take(4 * MIB)
        torch.cuda.empty_cache()
        streams = {entry["action"]: entry["stream"] for entry in history.trace()}
        assert set(streams.values()) == {side.cuda_stream}
        assert {"segment_map", "alloc", "segment_unmap"} <= set(streams)


@simulated
def test_the_trace_tells_an_out_of_memory_error():
    with History(context=None) as history:
        with pytest.raises(torch.OutOfMemoryError):
            take(2 * GIB)
        (entry,) = (e for e in history.trace() if e["action"] == "oom")
        assert entry["size"] == 2 * GIB
        assert entry["device_free"] == GIB


@simulated
def test_the_trace_has_python_frames_of_allocations_and_frees():
    with History(stacks="python") as history:
        a = take(4 * MIB)
        del a
        for entry in history.trace():
            if entry["action"] in ("alloc", "free_requested"):
                names = [frame["name"] for frame in entry["frames"]]
                assert (
                    "test_the_trace_has_python_frames_of_allocations_and_frees" in names
                )


@simulated
def test_the_trace_can_have_c_frames():
    with History(stacks="all") as history:
        take(4 * MIB)
        frames = next(e for e in history.trace() if e["action"] == "alloc")["frames"]
        assert any("at::" in frame["name"] for frame in frames)


@simulated
def test_the_trace_keeps_the_newest_entries_in_their_order():
    with History(context=None, max_entries=4) as history:
        for size in range(1, 7):
            take(size * 1000)
        assert history.actions() == [
            ("free_completed", 5000),
            ("alloc", 6000),
            ("free_requested", 6000),
            ("free_completed", 6000),
        ]


@simulated
def test_the_times_of_the_trace_are_those_of_the_clock():
    import time

    with History(context=None) as history:
        before = time.time_ns() // 1000
        take(4 * MIB)
        after = time.time_ns() // 1000
        for entry in history.trace():
            assert before - 10000 <= entry["time_us"] <= after + 10000


@simulated
def test_the_trace_can_leave_out_actions():
    with History(context=None, skip_actions=["free_requested"]) as history:
        take(4 * MIB)
        assert ("free_requested", 4 * MIB) not in history.actions()
        assert ("free_completed", 4 * MIB) in history.actions()


@simulated
def test_the_trace_carries_the_users_metadata():
    torch._C._cuda_setMemoryMetadata("step 7")
    try:
        with History(context=None) as history:
            take(4 * MIB)
            assert history.trace()[-1]["user_metadata"] == "step 7"
    finally:
        torch._C._cuda_setMemoryMetadata("")


@simulated
def test_recording_again_can_clear_the_trace():
    with History(context=None, max_entries=5) as history:
        for size in range(1, 7):
            take(size * 1000)
        torch.cuda.memory._record_memory_history(context=None, clear_history=True)
        assert history.trace() == []
        take(8000)
        assert history.actions()[0] == ("alloc", 8000)


@simulated
def test_nothing_is_recorded_after_the_end():
    with History(context=None) as history:
        pass
    take(4 * MIB)
    assert history.trace() == []


@simulated
def test_the_legacy_call_records_too():
    torch.cuda.memory._record_memory_history(
        True, trace_alloc_max_entries=100, trace_alloc_record_context=True
    )
    try:
        take(4 * MIB)
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        alloc = next(entry for entry in trace if entry["action"] == "alloc")
        assert any("take" in frame["name"] for frame in alloc["frames"])
    finally:
        torch.cuda.memory._record_memory_history(False)


@simulated
def test_threads_record_into_one_trace():
    def work() -> None:
        for _ in range(50):
            take(1000)

    with History(stacks="python") as history:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert history.actions("alloc") == [("alloc", 1000)] * 200


@simulated
def test_recording_can_begin_and_end_while_blocks_live():
    with History(stacks="python"):
        a = take(4 * MIB)
    b = take(4 * MIB)
    with History(stacks="python"):
        del b
    del a
    assert torch.cuda.memory_allocated() == 0


# ---- Snapshots


def only_segment(snapshot: list[dict], size: int) -> dict:
    (segment,) = (s for s in snapshot if s["total_size"] == size)
    return segment


@simulated
def test_a_snapshot_tells_the_blocks_of_each_segment():
    a, b = take(3 * MIB), take(2 * MIB)
    segment = only_segment(torch.cuda.memory_snapshot(), 6 * MIB)
    assert [(b["address"], b["size"], b["state"]) for b in segment["blocks"]] == [
        (a.data_ptr(), 3 * MIB, "active_allocated"),
        (b.data_ptr(), 2 * MIB, "active_allocated"),
        (b.data_ptr() + 2 * MIB, MIB, "inactive"),
    ]
    assert segment["address"] == a.data_ptr()
    assert segment["allocated_size"] == segment["active_size"] == 5 * MIB
    assert segment["segment_type"] == "large"
    assert segment["segment_pool_id"] == (0, 0)
    assert segment["device"] == 0
    del a, b


@simulated
def test_a_snapshot_tells_which_blocks_wait_for_other_streams():
    from remote import sim

    side = torch.cuda.Stream()
    a = take(4 * MIB)
    sim.oomph_sim_hold(side.cuda_stream)
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
    a.record_stream(side)
    del a
    segment = only_segment(torch.cuda.memory_snapshot(), 4 * MIB)
    assert [block["state"] for block in segment["blocks"]] == ["active_pending_free"]
    assert segment["allocated_size"] == 0
    assert segment["active_size"] == 4 * MIB
    sim.oomph_sim_release(side.cuda_stream)
    side.synchronize()


@simulated
def test_a_snapshot_is_sound_while_blocks_with_stacks_wait_for_other_streams():
    from remote import sim

    side = torch.cuda.Stream()
    with History(stacks="python"):
        blocks = [take(4 * MIB) for _ in range(20)]
        sim.oomph_sim_hold(side.cuda_stream)
        with torch.cuda.stream(side):
            torch.cuda._sleep(1000)
        for block in blocks:
            block.record_stream(side)
        del blocks, block
        for _ in range(5):
            segments = torch.cuda.memory._snapshot()["segments"]
        states = [b["state"] for s in segments for b in s["blocks"]]
        assert states.count("active_pending_free") == 20
        sim.oomph_sim_release(side.cuda_stream)
        side.synchronize()


@simulated
def test_a_snapshot_names_where_each_block_was_taken():
    with History(stacks="python"):
        a = take(4 * MIB)
        segment = only_segment(torch.cuda.memory._snapshot()["segments"], 4 * MIB)
        frames = segment["blocks"][0]["frames"]
        assert "take" in [frame["name"] for frame in frames]
        del a


@simulated
def test_a_snapshot_lists_segments_by_address():
    streams = [torch.cuda.Stream() for _ in range(4)]
    blocks = []
    for stream in streams:
        with torch.cuda.stream(stream):
            blocks += [take(4 * MIB), take(1000)]
    addresses = [segment["address"] for segment in torch.cuda.memory_snapshot()]
    assert len(addresses) == 8
    assert addresses == sorted(addresses)
    del blocks


@simulated
def test_a_snapshot_agrees_with_the_statistics():
    blocks = [take(size) for size in (100, MIB, 3 * MIB, 30 * MIB)]
    del blocks[2]
    segments = torch.cuda.memory_snapshot()
    stats = torch.cuda.memory_stats()
    for figure, key in (
        ("reserved_bytes", "total_size"),
        ("allocated_bytes", "allocated_size"),
        ("active_bytes", "active_size"),
        ("requested_bytes", "requested_size"),
    ):
        assert stats[f"{figure}.all.current"] == sum(s[key] for s in segments)
    del blocks


@simulated
def test_a_dump_can_be_read_back(tmp_path):
    path = f"{tmp_path}/snapshot.pickle"
    with History(stacks="python"):
        a = take(4 * MIB)
        torch.cuda.memory._dump_snapshot(path)
        del a
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    assert only_segment(snapshot["segments"], 4 * MIB)
    assert [e["action"] for e in snapshot["device_traces"][0]] == [
        "segment_map",
        "alloc",
    ]


@simulated
def test_memory_viz_draws_the_snapshot():
    with History(stacks="python"):
        a, b = take(4 * MIB), take(2 * MIB)
        del a
        torch.cuda.empty_cache()
        snapshot = torch.cuda.memory._snapshot()
        del b
    assert "<script" in viz.trace_plot(snapshot)
    assert "<script" in viz.segment_plot(snapshot)


@simulated
def test_memory_viz_tells_the_snapshot_in_text():
    with History(stacks="python"):
        a = take(4 * MIB)
        snapshot = torch.cuda.memory._snapshot()
        del a
    assert "4.0MiB" in viz.segsum(snapshot)
    assert "4.0MiB" in viz.trace(snapshot)


@simulated
def test_the_trace_names_the_compiled_region():
    @torch.compile(backend="eager")
    def function(x):
        return x + 1

    with History(context=None, compile_context=True) as history:
        x = take(1000)
        function(x)
        regions = [
            (entry["size"], entry["compile_context"])
            for entry in history.trace()
            if entry["action"] == "alloc"
        ]
        assert regions[0] == (1000, "N/A")
        assert regions[-1][1].startswith("Torch-Compiled Region: ")


@simulated
def test_a_snapshot_is_marked_in_the_trace():
    with History(context=None) as history:
        a = take(4 * MIB)
        assert history.actions("snapshot") == []
        assert history.actions("snapshot") == [("snapshot", 4 * MIB)]
        del a


@simulated
def test_a_snapshot_has_the_annotations_of_record_function():
    with History(context=None, global_record_annotations=True):
        with torch.profiler.record_function("forward"):
            take(1000)
        notes = torch.cuda.memory._snapshot()["external_annotations"]
        named = [(n["name"], n["stage"]) for n in notes if n["name"] == "forward"]
        assert named == [("forward", "START"), ("forward", "END")]
