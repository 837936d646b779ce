"""What no operator of PyTorch computes is computed all the same, or fails by name."""

from __future__ import annotations

import copy
import ctypes
import importlib
import re
import sys
import textwrap

import pytest
import torch
from support import TESTS, Simulated, execute
from torch import nn

simulated = Simulated("256MiB,context=0,memory=values", None)
shapes = Simulated("256MiB,context=0", None)

LIBRARIES: list[torch.library.Library] = []  # torch.compile trips over those that end
DOUBLE = "template <typename T> T twice_as_much(T x) { return x * 2; }"


def driver_kernel(name: bytes) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The driver, and a kernel of a module, as programs load that compile it."""
    torch.cuda.init()
    torch.ones(1, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoadData(ctypes.byref(module), b"") == 0
    assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, name) == 0
    return driver, kernel


def launch(driver: ctypes.CDLL, kernel: ctypes.c_void_p) -> int:
    return driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)


# ---- what fails by name


@simulated
def test_a_kernel_that_was_compiled_at_run_time_is_refused_by_name():
    double = torch.cuda.jiterator._create_jit_fn(DOUBLE)
    x = torch.arange(4.0, device="cuda")
    with pytest.raises(
        RuntimeError, match="cannot compute twice_as_much.* no operator"
    ):
        double(x)
    assert (x + 1).tolist() == [1.0, 2.0, 3.0, 4.0]


@simulated
def test_a_kernel_of_the_drivers_interface_is_refused_by_name():
    driver, kernel = driver_kernel(b"scale_rows")
    assert launch(driver, kernel) == 801  # not supported
    text = ctypes.c_char_p()
    driver.cuGetErrorString(801, ctypes.byref(text))
    assert text.value is not None and b"cannot compute scale_rows" in text.value
    torch.ones(2, device="cuda")  # what was refused stays known until the next refusal
    driver.cuGetErrorString(801, ctypes.byref(text))
    assert b"cannot compute scale_rows" in text.value


@shapes
def test_without_values_such_kernels_run_into_nothing():
    assert launch(*driver_kernel(b"scale_rows")) == 0
    torch.cuda.jiterator._create_jit_fn(DOUBLE)(torch.empty(4, device="cuda"))


@simulated
@pytest.mark.parametrize(
    "function", ["cublasSgemm_v2", "cublasLtMatmul", "cublasGemmEx"]
)
def test_a_product_that_is_asked_of_cublas_itself_is_refused(function):
    assert getattr(ctypes.CDLL(None), function)(None) == 15  # not supported
    x = torch.full((2, 2), 3.0, device="cuda")
    assert (x @ x).tolist() == [[18.0, 18.0]] * 2  # PyTorch's own are computed


# ---- operators of other libraries


def boxes() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    corners = torch.rand(40, 4) * 10
    corners[:, 2:] += corners[:, :2]
    return corners, torch.rand(40)


@simulated
def test_torchvision_suppresses_the_boxes_that_it_does_on_the_cpu():
    ops = importlib.import_module("torchvision.ops")
    corners, scores = boxes()
    wanted = ops.nms(corners, scores, 0.4)
    assert 5 < len(wanted) < 40
    assert ops.nms(corners.cuda(), scores.cuda(), 0.4).tolist() == wanted.tolist()


@simulated
@pytest.mark.parametrize("pooling", ["roi_align", "roi_pool", "ps_roi_align"])
def test_torchvision_pools_and_differentiates_as_on_the_cpu(pooling):
    ops = importlib.import_module("torchvision.ops")
    torch.manual_seed(6)
    image, regions = torch.randn(2, 4, 12, 12), torch.tensor([[0, 1, 1, 9, 9.0]])
    found = {}
    for device in ("cpu", "cuda"):
        x = image.clone().to(device).detach().requires_grad_()
        out = getattr(ops, pooling)(x, regions.to(device), 2)
        out.square().sum().backward()
        found[device] = (out.detach().cpu(), x.grad.cpu())
    assert found["cpu"][0].abs().sum() > 0
    assert all(map(torch.equal, found["cpu"], found["cuda"]))


@simulated
def test_torchvision_is_computed_when_its_stream_comes_to_it_and_in_graphs():
    ops = importlib.import_module("torchvision.ops")
    x = torch.zeros(1, 1, 8, 8, device="cuda")
    regions = torch.tensor([[0, 0, 0, 7, 7.0]], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pooled = ops.roi_align(x, regions, 1)
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        assert pooled.item() == value


@simulated
def test_an_operator_written_in_python_for_both_is_what_it_is_for_the_gpu():
    library = torch.library.Library("oomph_test_both", "DEF")
    LIBRARIES.append(library)
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", lambda x: x * 2, "CPU")
    library.impl("scaled", lambda x: x * 2 + 0 * x.sum().item(), "CUDA")
    x = torch.arange(3.0)
    assert torch.ops.oomph_test_both.scaled(x).tolist() == [0.0, 2.0, 4.0]
    assert torch.ops.oomph_test_both.scaled(x.cuda()).tolist() == [0.0, 2.0, 4.0]


# ---- Triton, TorchScript, and what waits


@simulated
def test_a_kernel_of_triton_is_run_by_its_interpreter_when_its_stream_comes_to_it():
    from triton_kernels import gelu

    x = torch.randn(1000)
    torch.cuda._sleep(10**9)
    ours = x.cuda() * 2  # the kernel waits for it
    wanted = torch.nn.functional.gelu(x * 2)
    torch.testing.assert_close(gelu(ours).cpu(), wanted)


@simulated
def test_a_kernel_of_triton_runs_whatever_device_is_the_default():
    from triton_kernels import gelu

    x = torch.linspace(-3, 3, 100, device="cuda")
    with torch.device("cuda"):
        found = gelu(x)
    wanted = torch.nn.functional.gelu(x.cpu())
    assert torch.allclose(found.cpu(), wanted, atol=1e-6)


@simulated
def test_a_kernel_of_triton_computes_with_bfloat16_as_pytorch_does():
    from triton_kernels import mixed, square_dot

    torch.manual_seed(3)
    x, y = torch.randn(2, 1000, dtype=torch.bfloat16)
    third = torch.where(x < y, x, -y).float() / 3  # Triton divides in float32
    wanted = ((x * y).float() + third).bfloat16()
    torch.testing.assert_close(mixed(x.cuda(), y.cuda()).cpu(), wanted, rtol=0, atol=0)
    square = torch.randn(16, 16, dtype=torch.bfloat16)
    torch.testing.assert_close(
        square_dot(square.cuda()).cpu(),
        (square.float() @ square.float()).bfloat16(),
    )


@simulated
def test_a_kernel_of_triton_writes_where_it_is_told_and_nowhere_else():
    from triton_kernels import add_one

    whole = torch.zeros(64, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**9)
        whole[32:].fill_(5)  # not done yet when the kernel runs
    add_one(whole[:32])
    torch.cuda.synchronize()
    assert whole.tolist() == [1.0] * 32 + [5.0] * 32


@simulated
def test_a_kernel_of_triton_loops_as_often_as_an_argument_says():
    from triton_kernels import total

    for count in (1, 64, 1000):
        x = torch.arange(count, dtype=torch.float32)
        assert total(x.cuda()).item() == x.sum().item()


@simulated
def test_a_captured_kernel_of_triton_is_run_at_each_replay():
    from triton_kernels import add_one, total

    x = torch.zeros(100, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_one(x)
        doubled = x * 2
        found = total(doubled)
    assert x.tolist() == [0.0] * 100  # a capture computes nothing
    for value in (1.0, 2.0, 3.0):
        torch.cuda._sleep(10**9)
        graph.replay()
        assert found.item() == 200 * value
    assert x.tolist() == [3.0] * 100
    del graph, doubled, found
    assert total(x).item() == 300


def test_a_kernel_of_triton_that_fails_in_a_replay_is_named():
    code = """
        import torch
        from triton_kernels import fails
        x = torch.zeros(8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fails[(1,)](x, 8, BLOCK=8)
        graph.replay()
        x.add_(1)
    """
    done = execute(
        *(sys.executable, "-c", textwrap.dedent(code)),
        card="256MiB,context=0,memory=values",
        PYTHONPATH=str(TESTS / "values"),
    )
    assert done.code != 0
    said = "RuntimeError: the Triton kernel fails failed.*no such power"
    assert re.search(said, done.err), done.err


@simulated
def test_a_tuned_kernel_of_triton_computes_once():
    from triton_kernels import add_tuned

    x = torch.zeros(100, device="cuda")
    add_tuned(x)
    assert x.tolist() == [1.0] * 100


@pytest.mark.long
@simulated
def test_torch_compile_trains_by_tritons_kernels_as_without_it():
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32))
    ours = copy.deepcopy(network).cuda()
    compiled = torch.compile(ours)
    x = torch.randn(8, 16)
    wanted = network(x).square().sum()
    loss = compiled(x.cuda()).square().sum()
    torch.testing.assert_close(loss.cpu(), wanted)
    wanted.backward()
    loss.backward()
    for mine, its in zip(ours.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), its.grad, rtol=1e-3, atol=1e-4)
    torch._dynamo.reset()


@simulated
def test_torchscript_computes_the_same_however_often_it_is_called():
    @torch.jit.script
    def squash(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * y + 1.0) * torch.sigmoid(x) - y

    x, y = torch.randn(100), torch.randn(100)
    wanted = torch.tanh(x * y + 1.0) * torch.sigmoid(x) - y
    for _ in range(6):
        assert torch.equal(squash(x.cuda(), y.cuda()).cpu(), wanted)


@simulated
def test_a_sleep_takes_its_cycles_of_the_cards_clock_and_its_stream_alone():
    khz = torch.cuda.get_device_properties(0).clock_rate
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    side = torch.cuda.Stream()
    begin.record()
    torch.cuda._sleep(khz * 25)
    end.record()
    with torch.cuda.stream(side):
        x = torch.ones(4, device="cuda") + 1
    side.synchronize()
    assert not end.query()
    assert x.tolist() == [2.0] * 4
    end.synchronize()
    assert 25 <= begin.elapsed_time(end) < 26


@simulated
@pytest.mark.parametrize("kind", ["uint8", "int8", "int32", "int64"])
def test_integers_are_counted_in_bins(kind):
    x = torch.tensor([5, 1, 2, 2, 7, 100, 3, 7, 0], dtype=getattr(torch, kind))
    ours = x.cuda()
    for bins, least, greatest in [(4, 0, 7), (3, 1, 6), (7, 0, 7), (5, 0, 0)]:
        found = torch.histc(ours, bins, least, greatest)
        wanted = torch.histc(x.double(), bins, least, greatest)
        assert found.dtype == x.dtype
        assert found.tolist() == wanted.tolist(), (bins, least, greatest)
    out = torch.empty(0, dtype=x.dtype, device="cuda")
    torch.histc(ours, 4, 0, 7, out=out)
    assert out.tolist() == torch.histc(x.double(), 4, 0, 7).tolist()
