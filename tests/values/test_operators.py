"""Every operator of PyTorch's own database gives on the GPU what it gives on the CPU.

All of them, sorted by name: none is picked. Those that cannot be equal stand in
``DIFFERENT``, with the reason.
"""

from __future__ import annotations

import warnings

import pytest
from support import Simulated

# Not a fork of one that has imported PyTorch: from 2.15 on it puts kernels in Python
# over those of some operators, which are to be above those of the simulated GPU.
simulated = Simulated("1GiB,memory=values,cc=8.6", None, anew=True)

PARTS = 24
EQUAL_MIN = 0.98  # of all that are tried

_ZERO = "its derivative on a GPU gives -0 where the CPU's gives 0"
_STATISTICS = "the GPU's statistics are float, or kept where the CPU keeps none"
_LAPACK = "the CPU's default is another driver of LAPACK"

# Even these give the same but for rounding.
DIFFERENT = {
    "_batch_norm_with_update": _STATISTICS,
    "_native_batch_norm_legit": _STATISTICS,
    "linalg.lstsq": _LAPACK,
    "linalg.lstsq.grad_oriented": _LAPACK,
    "max.reduction_no_dim": _ZERO,
    "median": _ZERO,
    "min.reduction_no_dim": _ZERO,
    "nanmedian": _ZERO,
    "native_batch_norm": _STATISTICS,
    "native_layer_norm": _STATISTICS,
    "renorm": "its derivative accumulates in double on the CPU, in float on a GPU",
}

_OF_CPU = "PyTorch has it for the CPU alone"
_OF_GPU = "PyTorch has it for a GPU alone"
_EIGHT_BITS = "it takes numbers of eight bits alone"
_WIDER = "PyTorch adds up in float32 on a GPU alone, by a product that only that has"

# There is nothing to compare.
NOT_TRIED = {
    "histogram": _OF_CPU,
    "histogramdd": _OF_CPU,
    "jiterator_2inputs_2outputs": _OF_GPU,
    "jiterator_4inputs_with_extra_args": _OF_GPU,
    "jiterator_binary": _OF_GPU,
    "jiterator_binary_return_by_ref": _OF_GPU,
    "jiterator_unary": _OF_GPU,
    "nn.functional.batch_norm.without_cudnn": _OF_GPU,
    "nn.functional.linear_cross_entropy.chunked": _WIDER,
    "nn.functional.linear_cross_entropy.chunked_none": _WIDER,
    "torch._scaled_mm": _EIGHT_BITS,
    "torch._scaled_mm_v2": _EIGHT_BITS,
    "torch.ops.aten._efficient_attention_forward": _OF_GPU,
    "torch.ops.aten._flash_attention_forward": _OF_GPU,
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": _OF_CPU,
}

# These raise an error.
REFUSED = {
    "sparse.mm.reduce": _OF_CPU,
}


def names() -> list[str]:
    from op_database import OPERATORS

    return sorted(OPERATORS)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
@simulated
def test_operators_give_the_cpus_values(part):
    from op_database import OPERATORS, differences

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names()[part::PARTS]:
            if name not in REFUSED and name not in NOT_TRIED:
                different = differences(OPERATORS[name], exact=name not in DIFFERENT)
                found.update({name: different} if different else {})
    assert found == {}, found


@pytest.mark.parametrize("operator", REFUSED)
@simulated
def test_an_operator_that_is_refused_is_named(operator):
    from op_database import OPERATORS, refusals

    errors = refusals(OPERATORS[operator])
    assert errors
    for error in errors:
        assert f"aten::_{operator.replace('.', '_')}" in error


PRODUCTS = {"mm": (0, 1), "bmm": (2, 3), "addmm": (0, 0, 1), "baddbmm": (2, 2, 3)}


@pytest.mark.parametrize("product", PRODUCTS)
@simulated
def test_products_are_made_in_a_wider_type_than_that_of_their_factors(product):
    import torch

    torch.manual_seed(1)
    shapes = (8, 8), (8, 8), (3, 8, 8), (3, 8, 8)
    tensors = [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
    factors = [tensors[i] for i in PRODUCTS[product]]
    on_gpu = [factor.cuda() for factor in factors]
    multiply = getattr(torch, product)
    more = {"alpha": 2.0, "beta": 0.5} if len(factors) == 3 else {}
    wanted = multiply(*(factor.float() for factor in factors), **more)
    found = multiply(*on_gpu, out_dtype=torch.float32, **more)
    assert torch.equal(found.cpu(), wanted)
    out = torch.empty_like(found)
    multiply(*on_gpu, out_dtype=torch.float32, out=out, **more)
    assert torch.equal(out.cpu(), wanted)


@simulated
def test_hardly_an_operator_differs():
    tried = set(names()) - set(NOT_TRIED)
    other = set(DIFFERENT) | set(REFUSED)
    assert other <= tried
    assert 1 - len(other) / len(tried) >= EQUAL_MIN
