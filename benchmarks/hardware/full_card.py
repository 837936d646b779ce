"""What works on a card that is full to the last page, and how much headroom it needs.

    python full_card.py OPERATION RESERVE

oomph takes all of the card but RESERVE; the operation then has 256 MiB for its tensors
from oomph, and nothing but RESERVE for what libraries and the driver take by
themselves: lazily loaded kernels, workspaces, local memory, streams, graphs. Prints one
JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable

import oomph
import torch
import torch.nn.functional as F

MIB = 1 << 20
FILLED_BY_OOMPH = 1024 * MIB  # the rest is taken in one piece, which is faster
LEFT_FOR_TENSORS = 256 * MIB

x = torch.empty(0)  # [1024, 1024] on the device, made before the card is full


def stream() -> None:
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        x.add_(1.0)


def events() -> None:
    for event in [torch.cuda.Event() for _ in range(1000)]:
        event.record()


def kernel() -> None:
    torch.special.bessel_j0(x)


def sort() -> None:
    x.view(-1).sort()


def gemm() -> None:
    x @ x


def linear_in_bf16() -> None:
    half = x.bfloat16()
    F.gelu(F.linear(half, half, half[0]))


def convolution() -> None:
    image = x.view(4, 16, 128, 128).requires_grad_()
    weight = torch.randn(32, 16, 3, 3, device="cuda", requires_grad=True)
    F.conv2d(image, weight).sum().backward()


def attention() -> None:
    q = x.bfloat16().view(1, 16, 1024, 64).requires_grad_()
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


def fft() -> None:
    torch.fft.rfft2(x)


def eigenvalues() -> None:
    torch.linalg.eigh(x[:256, :256] + x[:256, :256].T)


def sparse() -> None:
    x.relu().to_sparse_csr() @ x


def dropout() -> None:
    F.dropout(x)


def optimizer() -> None:
    weight = x.clone().requires_grad_()
    adam = torch.optim.AdamW([weight], fused=True)
    weight.sum().backward()
    adam.step()


def graph() -> None:
    x.mul_(1.0)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = x
        for _ in range(200):
            y = y * 1.0
    captured.replay()


def assertion() -> None:
    F.cross_entropy(x, torch.zeros(1024, dtype=torch.int64, device="cuda"))


def communicator() -> None:
    torch.distributed.init_process_group(
        "nccl", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    torch.distributed.all_reduce(x)
    torch.distributed.destroy_process_group()


OPERATIONS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        *(gemm, kernel, convolution, attention, graph, fft, linear_in_bf16, sort),
        *(optimizer, stream, events, dropout, eigenvalues, sparse, assertion),
        communicator,
    )
}


def take_most_of_the_card(reserve_bytes: int) -> None:
    """Takes, beside PyTorch's allocator, all that oomph need not fill itself."""
    free_bytes, _ = torch.cuda.mem_get_info()
    bytes_ = free_bytes - reserve_bytes - FILLED_BY_OOMPH
    if bytes_ > 0:
        addr = ctypes.c_uint64()
        driver = ctypes.CDLL("libcuda.so.1")
        code = driver.cuMemAlloc_v2(ctypes.byref(addr), ctypes.c_size_t(bytes_))
        if code != 0:
            raise SystemExit(f"cuMemAlloc of {bytes_} bytes: error {code}")


def fill() -> list[torch.Tensor]:
    """Allocates until there is no more."""
    kept: list[torch.Tensor] = []
    size = 64 * MIB
    while size >= 2 * MIB:
        try:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return kept


def main() -> None:
    global x
    name, reserve_bytes = sys.argv[1], int(sys.argv[2])
    oomph.install(offload="off", reserve=reserve_bytes)
    x = torch.ones(1024, 1024, device="cuda")
    torch.cuda.synchronize()
    take_most_of_the_card(reserve_bytes)
    kept = fill()
    free_before, _ = torch.cuda.mem_get_info()
    while kept and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() < (
        LEFT_FOR_TENSORS
    ):
        kept.pop()
    error = None
    try:
        OPERATIONS[name]()
        torch.cuda.synchronize()
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}".splitlines()[0]
    try:
        free_after = torch.cuda.mem_get_info()[0]
    except RuntimeError:
        free_after = None  # the error broke the context
    print(
        json.dumps(
            {
                "measure": "full card",
                "operation": name,
                "reserve_bytes": reserve_bytes,
                "error": error,
                "free_bytes_before": free_before,
                "free_bytes_after": free_after,
            }
        )
    )


if __name__ == "__main__":
    main()
