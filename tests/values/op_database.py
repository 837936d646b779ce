"""PyTorch's own database of operators: the same inputs on the CPU and on the GPU.

Runs in a process on the simulated GPU with values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64)
SAMPLES_MAX = 3  # of each type, spread evenly over those of the database
SEED = 20

# It looks through the stack, half of the time, for the unittest that asks for inputs.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

OPERATORS = {op.full_name: op for op in op_db}


def samples(op: OpInfo, dtype: torch.dtype) -> list[SampleInput]:
    """Some of the operator's sample inputs for a GPU."""
    torch.manual_seed(SEED)
    grad = all(dtype in op.supported_backward_dtypes(d) for d in ("cpu", "cuda"))
    found = list(op.sample_inputs("cuda", dtype, requires_grad=grad))
    step = -(-len(found) // SAMPLES_MAX)
    return found[::step] if step else []


def moved(sample: SampleInput, device: str) -> SampleInput:
    """A copy of the inputs on a device, laid out there as on any other."""

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        copy = value.detach().cpu()
        copy = copy.to(device) if value.is_cuda else copy.clone()
        return copy.requires_grad_(value.requires_grad)

    copy = sample.transform(move)
    if "device" in copy.kwargs:
        copy.kwargs["device"] = device
    return copy


def tensors(value: Any) -> list[torch.Tensor]:
    return [
        leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)
    ]


def gradients(op: OpInfo, sample: SampleInput, outputs: Any) -> list[torch.Tensor]:
    """The gradients of the inputs, for fixed gradients of the outputs."""
    given = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    inputs = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
    outputs = tensors(sample.output_process_fn_grad(outputs))
    outputs = [t for t in outputs if t.requires_grad]
    if not inputs or not outputs:
        return []
    grads = [
        torch.linspace(-1, 2, t.numel()).to(t.dtype).reshape(t.shape).to(t.device)
        for t in outputs
    ]
    found = torch.autograd.grad(outputs, inputs, grads, allow_unused=True)
    return [g for g in found if g is not None]


def results(op: OpInfo, sample: SampleInput, device: str) -> list[Any]:
    """What an operator gives, and its gradients: tensors on the CPU, or values."""
    sample = moved(sample, device)
    torch.manual_seed(SEED)
    outputs = op(sample.input, *sample.args, **sample.kwargs)
    found = pytree.tree_leaves(outputs) + gradients(op, sample, outputs)
    torch.cuda.synchronize()  # a copy to the host may be on its way
    return [t.detach().cpu() if isinstance(t, torch.Tensor) else t for t in found]


# ---- comparing


def is_uninitialised(op: OpInfo) -> bool:
    return op.name.removeprefix("new_").startswith("empty")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, those of every NaN the same."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.resolve_neg()
    if tensor.is_floating_point():
        tensor = tensor.masked_fill(tensor.isnan(), float("nan"))
    return (
        tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)
    )


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal bit for bit, NaN being equal to NaN."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and (a == b or (a != a and b != b))
    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
        return False
    return torch.equal(bits(a), bits(b))


def close(a: Any, b: Any) -> bool:
    """Whether they are equal but for rounding, or the CPU made no such result."""
    if not isinstance(a, torch.Tensor) or a.numel() == 0:
        return True
    return torch.allclose(a, b.to(a.dtype), rtol=1e-4, atol=1e-5, equal_nan=True)


def alike(a: Any, b: Any) -> bool:
    return (a.dtype, a.shape, a.layout) == (b.dtype, b.shape, b.layout)


def runs(op: OpInfo) -> Iterator[tuple[torch.dtype, SampleInput, list[Any]]]:
    """Types, inputs, and what the CPU gives for them."""
    for dtype in DTYPES:
        if dtype not in op.dtypes or dtype not in op.dtypesIfCUDA:
            continue
        for sample in samples(op, dtype):
            try:
                wanted = results(op, sample, "cpu")
            except (RuntimeError, NotImplementedError):
                continue  # of inputs for a GPU alone
            yield dtype, sample, wanted


def differences(op: OpInfo, exact: bool) -> list[str]:
    """Where the GPU gives anything else than the CPU."""
    equal = alike if is_uninitialised(op) else same if exact else close
    found, count = [], 0
    for dtype, sample, wanted in runs(op):
        count += 1
        got = results(op, sample, "cuda")
        which = [
            i
            for i, (a, b) in enumerate(zip(wanted, got, strict=False))
            if not equal(a, b)
        ]
        if which or len(wanted) != len(got):
            found.append(f"{dtype}, {sample.summary()}: results {which}")
    return found if count > 0 else ["no input was tried"]


def refusals(op: OpInfo) -> list[str]:
    """The errors of the GPU, one for each input; fails if it gives a result."""
    found = []
    for dtype, sample, _ in runs(op):
        try:
            results(op, sample, "cuda")
        except NotImplementedError as error:
            found.append(str(error))
        else:
            raise AssertionError(f"{dtype}, {sample.summary()}: there is a result")
    return found
