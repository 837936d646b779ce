"""The time that PyTorch's operators take on a simulated card whose speed is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oomph.simulate import Usage, usage
from recorded import in_order
from support import MIB, ROOT, TESTS, Simulated, oomph, run
from torch.utils.flop_counter import FlopCounterMode

# Figures that are easy to reckon with; time moves only where something takes time.
RATES = (
    "gpu=a100-40gb,link=10GB/s,bandwidth=1000GB/s,fp32=10TFLOPS,tf32=20TFLOPS,"
    "fp16=50TFLOPS,bf16=100TFLOPS,flops-share=1,bandwidth-share=1,launch=1us,tick=0,"
    "dispatch=0,sm-bytes=1000,sm-accesses=1000,"
    "context=0"
)
LINK, MEMORY = 10e9, 1e12  # bytes a second

simulated = Simulated(f"4GiB,{RATES}", None)
small = Simulated(f"512MiB,host=8GiB,{RATES}", "offload:on-oom,reserve:0")
with_values = Simulated(f"256MiB,memory=values,{RATES}", None)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def measure(work: Callable[[], Any]) -> tuple[float, Usage]:
    """The milliseconds that work takes the second time, and what it did."""
    work()
    torch.cuda.synchronize()
    before = usage()
    work()
    torch.cuda.synchronize()
    after = usage()
    pairs = zip(vars(after).values(), vars(before).values(), strict=True)
    used = Usage(*(b - a for b, a in pairs))
    return used.now_ns / 1e6, used


def about(ms: float) -> Any:
    """Equal but for the launch of a few kernels."""
    return pytest.approx(ms, abs=0.006)


# ---- arithmetic


@simulated
@pytest.mark.parametrize(
    ("dtype", "tflops"), [("float32", 10), ("float16", 50), ("bfloat16", 100)]
)
def test_a_product_of_matrices_takes_its_arithmetic_at_the_rate_of_its_type(
    dtype, tflops
):
    a, b = (empty(2048, 2048, dtype=getattr(torch, dtype)) for _ in range(2))
    ms, used = measure(lambda: a @ b)
    assert used.flops == 2 * 2048**3
    assert ms == about(2 * 2048**3 / tflops / 1e9)
    assert used.compute_busy_ns == pytest.approx(ms * 1e6)


@simulated
def test_tf32_counts_where_pytorch_allows_it():
    a, b = empty(2048, 2048), empty(2048, 2048)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        ms, _ = measure(lambda: a @ b)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert ms == about(2 * 2048**3 / 20e9)


@simulated
def test_a_product_with_a_vector_takes_the_time_of_its_memory():
    a, b = empty(8192, 8192), empty(8192, 1)
    ms, used = measure(lambda: torch.mm(a, b))
    assert used.device_bytes == 4 * (8192**2 + 2 * 8192)
    assert ms == about(4 * 8192**2 / MEMORY * 1e3)


def counted(counter: FlopCounterMode) -> float:
    """What PyTorch counts, with half of the attention, which is causal."""
    counts = counter.get_flop_counts().get("Global", {})
    return sum(
        flops / 2 if "attention" in str(operator) else flops
        for operator, flops in counts.items()
    )


def check_flops(step: Callable[[], torch.Tensor], **flags: bool) -> None:
    """Training steps count what PyTorch's own counter counts with these flags."""
    with torch.backends.cudnn.flags(**flags), FlopCounterMode(display=False) as counter:
        step().backward()
    expected = counted(counter)
    _, used = measure(lambda: step().backward())
    assert used.flops == pytest.approx(expected, rel=1e-9)
    assert expected > 1e6


@simulated
@pytest.mark.parametrize(
    "backend",
    ["MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"],
)
def test_a_gpt_counts_as_much_arithmetic_as_pytorchs_counter(backend):
    import models
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model = models.Gpt().cuda().half()
    tokens = torch.zeros(4, 32, dtype=torch.long, device="cuda")
    with sdpa_kernel(getattr(SDPBackend, backend)):
        check_flops(lambda: model(tokens))


@simulated
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_count_as_much_arithmetic_as_pytorchs_counter(transposed):
    kind = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    model = torch.nn.Sequential(
        kind(3, 16, 3, stride=2, padding=1), torch.nn.ReLU(), kind(16, 8, 5)
    ).cuda()
    images = empty(2, 3, 33, 40)
    check_flops(lambda: model(images).sum())


@simulated
def test_a_convolution_in_groups_counts_the_weights_that_it_has():
    weight = empty(32, 2, 3, 3).requires_grad_()
    images = empty(2, 16, 20, 20).requires_grad_()

    def forward() -> torch.Tensor:
        return F.conv2d(images, weight, groups=8, padding=1)

    _, used = measure(forward)
    assert used.flops == 2 * weight.numel() * 2 * 20 * 20
    assert measure(lambda: forward().sum().backward())[1].flops == 3 * used.flops


@simulated
@pytest.mark.parametrize("layers", [1, 2])
def test_an_lstm_of_cudnn_counts_as_much_as_one_of_matrices(layers):
    model = torch.nn.LSTM(24, 40, layers, bidirectional=True).cuda()
    sequence = empty(7, 3, 24).requires_grad_()
    state = tuple(empty(2 * layers, 3, 40).requires_grad_() for _ in range(2))
    check_flops(lambda: model(sequence, state)[0].sum(), enabled=False)


# ---- memory


@simulated
def test_a_pointwise_operator_reads_its_arguments_and_writes_its_result():
    x, y = empty(1 << 24), empty(1 << 24)
    for work, passes in (
        (lambda: x + y, 3),
        (lambda: x.add_(y), 3),
        (lambda: x.zero_(), 1),
        (lambda: torch.add(x, 1, out=y), 2),
        (lambda: x.sum(), 1),
    ):
        ms, used = measure(work)
        assert used.device_bytes == pytest.approx(passes << 26, rel=1e-6)
        assert ms == about(passes * (1 << 26) / MEMORY * 1e3)


@simulated
def test_a_view_counts_its_own_elements_and_an_expanded_tensor_each_once():
    x, row = empty(4096, 4096), empty(4096)
    used = measure(lambda: x[:, ::4].sum())[1]
    assert used.device_bytes == pytest.approx(4 * (4096 * 1024 + 1))
    used = measure(lambda: torch.add(x, row.expand(4096, 4096), out=x))[1]
    assert used.device_bytes == pytest.approx(4 * (2 * 4096**2 + 4096))


@simulated
def test_what_only_describes_memory_takes_no_time():
    x = empty(64, 64)
    ms, used = measure(lambda: (x.view(-1), x.t()[3:], empty(512, 512), x.detach()))
    assert ms == 0
    assert used.operators == 0


@simulated
def test_an_operator_that_calls_others_counts_once():
    x = empty(1 << 20)
    _, used = measure(lambda: F.layer_norm(x.view(1024, 1024), (1024,)))
    assert used.operators == 1


@simulated
def test_looking_rows_up_moves_the_rows_alone():
    table, rows = empty(1 << 16, 256), torch.zeros(100, dtype=torch.long, device="cuda")
    used = measure(lambda: F.embedding(rows, table))[1]
    assert used.device_bytes == 2 * 100 * 256 * 4 + 100 * 8


@simulated
def test_the_fused_optimizer_reads_four_tensors_and_writes_three():
    weight = torch.nn.Parameter(empty(1 << 22))
    weight.grad = empty(1 << 22)
    optimizer = torch.optim.AdamW([weight], fused=True)
    used = measure(optimizer.step)[1]
    assert used.device_bytes == pytest.approx(7 << 24, rel=1e-5)


@simulated
def test_a_copy_within_the_device_reads_and_writes():
    x = empty(1 << 26)
    ms, used = measure(x.clone)
    assert used.device_bytes == 2 << 28
    assert ms == about((2 << 28) / MEMORY * 1e3)


@simulated
def test_a_conversion_of_types_reads_one_and_writes_the_other():
    x = empty(1 << 24, dtype=torch.bfloat16)
    assert measure(x.float)[1].device_bytes == 6 << 24


@simulated
def test_an_operator_made_of_others_is_their_sum():
    x = empty(1 << 24)
    ms, used = measure(lambda: x.pow(1))  # a copy by the driver
    assert used.device_bytes == 2 << 26
    assert ms == about((2 << 26) / MEMORY * 1e3)


# ---- the link


@simulated
def test_copies_both_ways_at_once_take_the_time_of_one():
    up, up_too, down = (empty(25_000_000) for _ in range(3))
    source = torch.empty(25_000_000, pin_memory=True)
    target = torch.empty(25_000_000, pin_memory=True)
    one, two = torch.cuda.Stream(), torch.cuda.Stream()

    def both() -> None:
        with torch.cuda.stream(one):
            up.copy_(source, non_blocking=True)
        with torch.cuda.stream(two):
            target.copy_(down, non_blocking=True)

    def same_way() -> None:
        for stream, destination in ((one, up), (two, up_too)):
            with torch.cuda.stream(stream):
                destination.copy_(source, non_blocking=True)

    ms, used = measure(both)
    assert ms == about(1e8 / LINK * 1e3)
    assert (used.h2d_bytes, used.d2h_bytes) == (10**8, 10**8)
    assert used.operators == 0
    assert measure(same_way)[0] == about(2e8 / LINK * 1e3)


@small
def test_a_kernel_reads_and_writes_blocks_on_the_host_at_the_speed_of_the_link():
    import oomph as package

    first = torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
    second = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    on_host = package.stats()["host_block_bytes"]  # what did not fit the card
    assert 88 * MIB <= on_host < 100 * MIB
    ms, used = measure(lambda: second.add_(1))
    assert ms == about(on_host / LINK * 1e3)
    assert (used.h2d_bytes, used.d2h_bytes) == (on_host, on_host)
    ms, used = measure(lambda: second.zero_())
    assert ms == about(on_host / LINK * 1e3)
    assert (used.h2d_bytes, used.d2h_bytes) == (0, on_host)
    ms, _ = measure(lambda: first.add_(1))
    assert ms == about(800 * MIB / MEMORY * 1e3)


# ---- all together


@simulated
def test_a_replayed_graph_takes_the_time_of_what_was_captured():
    x = empty(2048, 2048, dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    x @ x
    with torch.cuda.graph(graph):
        for _ in range(3):
            y = x @ x
    ms, used = measure(graph.replay)
    assert used.flops == 3 * 2 * 2048**3
    assert ms == about(3 * 2 * 2048**3 / 100e9)
    del graph, y


@simulated
def test_what_torch_compile_writes_takes_the_time_to_move_it():
    torch._inductor.config.compile_threads = 1  # else in processes that outlive this

    @torch.compile
    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * 2 + y).relu() * 3

    @torch.compile
    def added(x: torch.Tensor, row: torch.Tensor) -> None:
        x.add_(row)

    x, y = empty(4096, 4096), empty(4096, 4096)
    ms, used = measure(lambda: scaled(x, y))
    assert used.device_bytes == 3 * x.nbytes
    assert ms == about(3 * x.nbytes / MEMORY * 1e3)
    ms, used = measure(lambda: added(x, y[0]))
    assert used.device_bytes == 2 * x.nbytes + y[0].nbytes
    ms, used = measure(lambda: scaled(x[:4], y[:4]))
    assert used.device_bytes == 3 * x[:4].nbytes


@simulated
def test_a_kernel_of_triton_takes_the_time_to_move_what_it_is_given():
    from triton_kernels import mixed_kernel

    x, y = empty(4096, 4096), empty(4096, 4096)
    out = torch.empty_like(x)
    count = x.numel()
    ms, used = measure(lambda: mixed_kernel[(count // 1024,)](x, y, out, count, 1024))
    assert used.device_bytes == 3 * x.nbytes
    assert ms == about(3 * x.nbytes / MEMORY * 1e3)


@simulated
def test_an_operator_of_another_library_takes_the_time_to_move_what_it_is_given():
    import torchvision

    pictures, boxes = empty(1, 256, 256, 256), empty(512, 5)
    out_bytes = 512 * 256 * 14 * 14 * 4  # zeroed first
    ms, used = measure(lambda: torchvision.ops.roi_align(pictures, boxes, 14))
    assert used.device_bytes == pictures.nbytes + boxes.nbytes + 2 * out_bytes
    assert ms == about(used.device_bytes / MEMORY * 1e3)


@with_values
def test_an_operator_of_another_library_with_values_takes_the_same_time():
    import torchvision

    pictures = torch.randn(1, 8, 64, 64, device="cuda")
    boxes = torch.tensor([[0, 1, 1, 60, 60]], dtype=torch.float, device="cuda")
    _, used = measure(lambda: torchvision.ops.roi_align(pictures, boxes, 32))
    out = torchvision.ops.roi_align(pictures, boxes, 32)
    assert used.device_bytes == pictures.nbytes + boxes.nbytes + 2 * out.nbytes
    expected = torchvision.ops.roi_align(pictures.cpu(), boxes.cpu(), 32)
    assert torch.equal(out.cpu(), expected)


@simulated
def test_an_operator_of_another_library_that_calls_others_takes_their_time():
    @torch.library.custom_op("theirs::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    x = empty(4096, 4096)
    ms, used = measure(lambda: scaled(x))
    assert used.device_bytes == 4 * x.nbytes
    assert ms == about(4 * x.nbytes / MEMORY * 1e3)


@with_values
def test_operators_with_values_take_the_same_time():
    x = torch.randn(256, 256, device="cuda")
    ms, used = measure(lambda: x @ x)
    assert used.flops == 2 * 256**3
    assert ms == about(2 * 256**3 / 10e9)
    assert torch.equal((x @ x).cpu(), x.cpu() @ x.cpu())
    assert (
        measure(lambda: F.embedding(torch.zeros(9, dtype=torch.long).cuda(), x))[
            1
        ].operators
        == 1
    )


def test_a_program_asks_for_the_same_memory_with_and_without_rates(tmp_path):
    sizes = ("--layers", "3", "--width", "192", "--heads", "3", "--block", "256")
    script = (ROOT / "examples" / "train_gpt.py", *sizes, "--amp", "--accumulate", "2")
    found = []
    for card in ("4GiB", "4GiB,gpu=h100"):
        result = tmp_path / card
        done = oomph(
            *("run", "--simulate", card, "--allocator", "native"),
            *(TESTS / "recorded.py", result, *script),
        )
        assert done.code == 0, done.err
        record = json.loads((tmp_path / f"{card}.0").read_text())
        found.append({**record, "requests": in_order(record["requests"])})
    assert found[0] == found[1]
    assert len(found[0]["requests"]) > 1000


@pytest.mark.parametrize("card", ["t4", "a100-40gb", "a10", "l4", "b200", "rtx5090"])
def test_a_card_of_each_architecture_trains_and_takes_its_time(card):
    code = """
        import sys
        sys.path += sys.argv[1:]
        import models, torch
        from oomph.simulate import usage
        model = models.Gpt().cuda()
        model(torch.zeros(128, 32, dtype=torch.long, device="cuda")).backward()
        torch.cuda.synchronize()
        assert usage().flops > 1e9
    """
    result = run(code, TESTS / "values", card=card)
    assert result.code == 0, result.err


def test_usage_is_for_a_simulated_card():
    ask = "import torch; from oomph.simulate import usage; usage({})"
    assert "the GPU of this process is not simulated" in run(ask.format(0)).err
    assert "the simulated card has no device 3" in run(ask.format(3), card="1GiB").err
