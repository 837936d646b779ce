"""Snapshots and the memory history: after PyTorch's test_cuda.py."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import pickle
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from both import both, native
from torch.cuda import _memory_viz

HERE = Path(__file__).name
SIZE = 311 * 411 * 4
snapshot = torch.cuda.memory._snapshot


@contextlib.contextmanager
def recording(*args: Any, **options: Any) -> Iterator[None]:
    """The history is recorded from an empty cache on."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    try:
        torch.cuda.memory._record_memory_history(*args, **options)
        yield
    finally:
        torch.cuda.memory._record_memory_history(None)


def blocks_of(size: int, found: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks that were asked for with this size, and live."""
    return [
        block
        for segment in found["segments"]
        for block in segment["blocks"]
        if block["requested_size"] == size and block["state"] == "active_allocated"
    ]


@both
def test_memory_snapshot():
    with recording("state", stacks="python"):
        torch.rand(2 * 311, 411, device="cuda")
        unused = torch.rand(310, 410, device="cuda")
        x = torch.rand(311, 411, device="cuda")
        rng, tensors = random.Random(5), []
        tensors = [torch.rand(128, device="cuda") for _ in range(300)]
        while tensors:
            del tensors[rng.randrange(len(tensors))]
        torch.rand(128 * 5, device="cuda")
        found = snapshot()
        assert all("frames" in segment for segment in found["segments"])
        (block,) = blocks_of(SIZE, found)
        assert block["address"] == x.untyped_storage().data_ptr()
        assert HERE in block["frames"][0]["filename"]
        assert HERE in _memory_viz.memory(found, format_flamegraph=str)
        del unused, x
        torch.cuda.empty_cache()
        last = snapshot()["device_traces"][0][-1]["action"]
        assert last in ("segment_free", "segment_unmap")


@both
def test_direct_traceback():
    from torch._C._profiler import gather_traceback, symbolize_tracebacks

    (found,) = symbolize_tracebacks([gather_traceback(True, True, True)])
    assert HERE in str(found) and "unwind" in str(found)


@both
def test_memory_snapshot_with_cpp():
    with recording("state", stacks="all"):
        x = torch.rand(311, 411, device="cuda")
        (block,) = blocks_of(SIZE, snapshot())
        assert "::rand" in str(block["frames"])
    del x


@both
def test_memory_snapshot_script():
    with recording("state", stacks="python"):
        script = torch.jit.CompilationUnit(
            'def scripted():\n    return torch.rand([311, 411], device="cuda")\n'
        )
        x = script.scripted()
        (block,) = blocks_of(SIZE, snapshot())
        assert block["frames"][0]["name"] == "scripted"
    del x


@both
def test_memory_profiler_viz():
    with torch.profiler.profile(
        with_stack=True, profile_memory=True, record_shapes=True
    ) as profile:
        x = torch.rand(128, 128, device="cuda")
        _ = x * x + x * x
    _memory_viz.profile_plot(profile)
    plot = json.dumps(_memory_viz._profile_to_snapshot(profile))
    assert HERE in plot and "test_memory_profiler_viz" in plot and "category" in plot


@both
def test_cycles():
    """What keeps a tensor in a circle is shown once the circle is collected."""
    from torch.utils.viz._cycles import observe_tensor_cycles

    pages: list[str] = []
    disarm = observe_tensor_cycles(pages.append)

    def create() -> None:
        x = torch.empty(3, 4, device="cuda")

        def again(p: bool) -> Any:
            return again(not p) if p else x

    try:
        create()
        gc.collect()
        (lambda: None)()  # the observer is called at the next call
        assert len(pages) == 1
        for word in ("torch.Tensor", "test_cuda", "cell_contents"):
            assert word in pages[0]
    finally:
        disarm()


@both
def test_memory_plots():
    def work() -> None:
        x = torch.rand(128, 128, device="cuda")
        _ = x * x + x * x

    for context, stacks in (("all", "all"), ("all", "python"), (None, "python")):
        with recording("all", context=context, stacks=stacks):
            work()
            found = snapshot()
        _memory_viz.trace_plot(found)
        _memory_viz.trace_plot(found, filter_freed=True)
        _memory_viz.segment_plot(found)
        text = json.dumps(found)
        assert ("test_memory_plots" in text) == (context is not None)
        assert ("::rand" in text) == (stacks == "all")
        assert str(128 * 128 * 4) in text


CONTEXTS = ("alloc", "all", "state")


@both
def test_memory_plots_free_stack():
    kept: list[torch.Tensor] = []

    def the_allocation() -> None:
        kept.append(torch.rand(3, 4, device="cuda"))

    def the_free() -> None:
        kept.clear()

    for context in CONTEXTS:
        with recording(context=context):
            the_allocation()
            the_free()
            text = json.dumps(snapshot())
        assert ("the_free" in text) == (context == "all")
        assert ("the_allocation" in text) == (context != "state")


@both
def test_memory_plots_history_context():
    def with_stack() -> torch.Tensor:
        return torch.rand(4, 4, device="cuda")

    def without() -> torch.Tensor:
        return torch.rand(3, 4, device="cuda")

    def with_stack_again() -> torch.Tensor:
        return torch.rand(4, 4, device="cuda")

    record = torch.cuda.memory._record_memory_history
    with recording(context="all", stacks="python"):
        with_stack()
        record(context=None)
        without()
        record(context="all", stacks="python")
        with_stack_again()
        text = json.dumps(snapshot())
    names = [name in text for name in ('"with_stack"', '"without"', "with_stack_again")]
    assert names == [True, False, True]


@both
def test_memory_plots_free_segment_stack():
    for context in CONTEXTS:
        with recording(context=context):
            x = torch.rand(3, 4, device="cuda")
            del x
            torch.cuda.empty_cache()
            text = json.dumps(snapshot())
        assert ("empty_cache" in text) == (context == "all")


@pytest.mark.parametrize("context", CONTEXTS)
@both
def test_memory_plots_metadata(context):
    memory = torch.cuda.memory
    torch.cuda.empty_cache()
    memory._set_memory_metadata("a note")
    try:
        with recording(context=context):
            x = torch.rand(3, 4, device="cuda")
            del x
            torch.cuda.empty_cache()
            memory._set_memory_metadata("")
            events = snapshot()["device_traces"][0]
        assert events and {event["user_metadata"] for event in events} == {"a note"}
    finally:
        memory._set_memory_metadata("")


@pytest.mark.parametrize(
    "skipped",
    [
        ["free_requested"],
        ["free_requested", "free_completed"],
        ["alloc"],
        ["segment_alloc", "segment_free"],
        [],
        None,
    ],
)
@both
def test_memory_snapshot_skip_actions(skipped):
    with recording(context="all", stacks="python", skip_actions=skipped):
        x = torch.rand(128, 128, device="cuda")
        del x
        torch.cuda.synchronize()
        events = snapshot()["device_traces"][0]
    found = {event["action"] for event in events}
    mapped = "segment_alloc" if native() else "segment_map"
    usual = {"alloc", "free_requested", "free_completed", mapped}
    assert found & usual == usual - set(skipped or [])


@both
def test_memory_compile_regions():
    """PyTorch's needs Triton's kernels; the regions are the compiler's all the same."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(10, 10), torch.nn.Linear(10, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            x = x + 1 if x.sum() > 0 else x - 1
            return self.second(x)

    x = torch.randn(1, 10, device="cuda")
    compiled = torch.compile(Model().cuda(), backend="aot_eager")
    with recording(context="all", compile_context=True):
        compiled(x)
        events = snapshot()["device_traces"][0]
    seen = [e["compile_context"] for e in events if e["compile_context"] != "N/A"]
    runs = [now for now, then in zip(seen, ["", *seen], strict=False) if now != then]
    region = "Torch-Compiled Region: {}/0"
    assert runs == [region.format(which) for which in (0, 1, 0)]
    torch._dynamo.reset()


@both
def test_fx_memory_profiler_augmentation():
    """Events know the line of the model that its traced graph came from."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(10, 16), torch.nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.first(x)
            b = torch.relu(a)
            return self.second(b)

    model, x = Model().cuda(), torch.randn(10, 10, device="cuda")
    config = torch.fx.experimental._config
    with config.patch("enrich_profiler_metadata", True), recording():
        torch.compile(model, backend="aot_eager", fullgraph=True)(x)
        found = snapshot(augment_with_fx_traces=True)
    frames = [
        frame
        for event in found["device_traces"][0]
        for frame in event.get("frames", ())
        if "fx_node_name" in frame
    ]
    lines = {frame["fx_node_name"]: frame["fx_original_trace"] for frame in frames}
    wanted = {"addmm": "self.first(x)", "relu": "relu(a)", "addmm_1": "self.second(b)"}
    assert lines.keys() and lines.keys() <= wanted.keys()
    assert all(wanted[name] in line for name, line in lines.items())
    assert all("fx_node_op" in frame and "fx_node_target" in frame for frame in frames)
    torch._dynamo.reset()


# ---- from C++: PyTorch's test builds an extension, this one declares what it calls

CPP = """
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>
namespace torch::cuda {
void _record_memory_history(bool, bool, int64_t, bool, bool, bool, bool, bool,
                            const std::vector<std::string> &);
std::string _memory_snapshot_pickled();
}
extern "C" void record(bool enabled, bool context)
{
    torch::cuda::_record_memory_history(enabled, context, 10, context, context, false,
                                        false, false, {});
}
extern "C" int64_t take_snapshot(char *to, int64_t room)
{
    std::string data = torch::cuda::_memory_snapshot_pickled();
    if ((int64_t)data.size() <= room)
        std::memcpy(to, data.data(), data.size());
    return (int64_t)data.size();
}
"""


@functools.cache
def from_cpp() -> Any:
    """The library built from that."""
    folder = Path(tempfile.mkdtemp())
    (folder / "snapshot.cpp").write_text(CPP)
    libraries = Path(torch.__file__).parent / "lib"
    command = ["c++", "-std=c++17", "-shared", "-fPIC", "-o", folder / "snapshot.so"]
    command += [folder / "snapshot.cpp", f"-L{libraries}", "-ltorch_cuda"]
    subprocess.run(command, check=True)
    built = ctypes.CDLL(str(folder / "snapshot.so"))
    built.take_snapshot.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    return built


@pytest.mark.parametrize("context", [False, True])
@both
def test_cpp_memory_snapshot_pickle(context):
    room = ctypes.create_string_buffer(1 << 22)
    torch.cuda.empty_cache()
    script = torch.jit.CompilationUnit(
        'def scripted():\n    return torch.rand([311, 411], device="cuda")\n'
    )
    from_cpp().record(True, context)
    try:
        x = script.scripted()
        size = from_cpp().take_snapshot(room, len(room))
        found = pickle.loads(room.raw[:size])
    finally:
        from_cpp().record(False, False)
    (block,) = blocks_of(SIZE, found)
    if context:
        frames = str(block["frames"])
        assert "::rand" in frames and "scripted" in frames and HERE in frames
    allocations = [e for e in found["device_traces"][0] if e["action"] == "alloc"]
    assert allocations[-1]["size"] >= SIZE
    del x
