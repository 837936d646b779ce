"""What offloading costs: the time of steps, the bytes over the link, the waits."""

import warnings

import pytest
import torch
from support import MIB, Simulated, run
from torch import nn

# On this link, a MiB takes 0.1 ms.
card = Simulated("512MiB,context=0,link=10.48576GB/s", "reserve:0,host_limit:4GiB")
PIECE_MIB = 64


def train(layers: int) -> None:
    import oomph

    x = torch.empty(PIECE_MIB * MIB // 4, device="cuda", requires_grad=True)
    nn.Sequential(*(nn.Sigmoid() for _ in range(layers)))(x).sum().backward()
    oomph.step()


@card
def test_a_step_without_offload_is_timed():
    import oomph

    for _ in range(3):
        train(2)
        torch.cuda.synchronize()
    now = oomph.stats()
    assert now["step_ms"] == now["step_ms_without_offload"] > 0
    assert now["sent_bytes"] == now["fetched_bytes"] == now["waited_ms"] == 0


@card
def test_the_last_step_without_offload_is_remembered():
    import oomph

    for layers in (2, 2, 12, 12, 12, 12):
        train(layers)
        torch.cuda.synchronize()
        if layers == 2:
            without_ms = oomph.stats()["step_ms"]
    now = oomph.stats()
    assert now["step_ms_without_offload"] == without_ms
    assert now["step_ms"] > without_ms


@card
def test_bytes_and_waits_are_counted_as_the_link_moves_them():
    import oomph

    for _ in range(5):
        train(12)
        torch.cuda.synchronize()
    reported = oomph.planner.explain()[0]
    pieces = reported["step_sent_bytes"] / (PIECE_MIB * MIB)
    assert pieces == int(pieces) > 0
    assert reported["step_fetched_bytes"] == reported["step_sent_bytes"]
    # The kernels take no time here: the step is what its copies take, out and back. The
    # device waits for those back, but for what the host waits while it wants memory.
    copies_ms = pieces * PIECE_MIB * 0.1
    assert reported["step_ms"] == pytest.approx(2 * copies_ms, rel=0.02)
    assert 0.3 * copies_ms < reported["step_waited_ms"] < 1.02 * copies_ms
    assert f"the device waited {reported['step_waited_ms']:.1f} ms" in reported["text"]
    now = oomph.stats()
    assert now["sent_bytes"] > reported["step_sent_bytes"]  # of five steps
    assert now["waited_ms"] == reported["waited_ms"] > reported["step_waited_ms"]


def test_the_table_at_exit_tells_of_what_went_ahead_of_need():
    code = """
    import torch, oomph
    from torch import nn
    model = nn.Sequential(*(nn.Sigmoid() for _ in range(12)))
    for _ in range(5):
        x = torch.empty(64 << 18, device="cuda", requires_grad=True)
        model(x).sum().backward()
        oomph.step()
        torch.cuda.synchronize()
    """
    result = run(code, card="512MiB,context=0", conf="reserve:0,host_limit:4GiB")
    assert result.code == 0
    assert "sent to the host ahead of need" in result.err
    assert "fetched from there" in result.err
    assert "the last step took" in result.err


def test_a_device_that_has_failed_does_not_keep_the_table_from_being_reported():
    code = """
    import ctypes, torch, oomph
    from torch import nn
    launch = ctypes.CDLL("libcuda.so.1").oomph_sim_launch
    launch.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int]
    launch.argtypes += [ctypes.c_uint64]
    model = nn.Sequential(*(nn.Sigmoid() for _ in range(12)))

    def train():
        x = torch.empty(64 << 18, device="cuda", requires_grad=True)
        model(x).sum().backward()

    for _ in range(5):
        train()
        oomph.step()
        torch.cuda.synchronize()
    train()
    freed = torch.empty(1 << 22, device="cuda").data_ptr()
    torch.cuda.synchronize()
    kept = torch.ones(1 << 20, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    launch(stream, kept.data_ptr(), 16, 1, 500_000_000)
    oomph.step()  # its event is still to come
    launch(stream, freed, 16, 1, 1)
    torch.cuda.synchronize()
    """
    conf = "reserve:0,host_limit:4GiB,guard:unmap"
    result = run(code, card="512MiB,context=0", conf=conf)
    assert result.code == 1
    assert result.err.count("Traceback") == 1
    assert result.err.count("AcceleratorError: CUDA error: an illegal memory") == 1
    assert "sent to the host ahead of need" in result.err


@card
def test_a_compiled_optimizer_step_counts_and_warns_of_nothing():
    import oomph

    parameter = torch.nn.Parameter(torch.ones(8, device="cuda"))
    optimizer = torch.optim.AdamW([parameter], capturable=True)
    step = torch.compile(optimizer.step, backend="eager")
    before = oomph.stats()["steps"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            parameter.grad = torch.ones_like(parameter)
            step()
    assert oomph.stats()["steps"] == before + 3
    assert [str(w.message) for w in caught if "oomph" in str(w.message)] == []


@card
def test_a_step_whose_forward_was_not_seen_has_no_times():
    from oomph.recompute.stopwatch import Stopwatch

    watch = Stopwatch(0)
    watch.used(1, [])
    watch.finished()
    watch.stop()
    assert watch.measured((), (), ()) is None
