"""Results, in sizes alone, of operators whose library is not simulated.

Kernels compute nothing on the simulated GPU, so what such an operator would compute
does not matter: PyTorch's own meta kernel says what its results are like, and these are
made, of values that are not known. What the operator's own code had allocated until the
library refused, such as copies of its inputs, is in the peak; what it works with beside
is not, but for transforms by cuFFT.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

_FFT = "_fft_"
_PRODUCTS = ("mm", "addmm", "mv", "addmv", "bmm", "baddbmm")  # dense if a factor is


class Unknown(NotImplementedError):
    """PyTorch does not say what the results are like."""


def run(operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operator gives.

    Args:
        operator: Its name, with that of the overload: ``"linalg_inv_ex.inverse"``.
        args: Of the call.
        kwargs: Of the call.

    Raises:
        Unknown: It is not known how large that is.
    """
    overload = _overload(operator)
    tensors = [each for each in pytree.tree_leaves((args, kwargs)) if _is_there(each)]
    is_dense = all(each.layout is torch.strided for each in tensors)
    if not tensors or not (is_dense or _is_dense_product(operator, args)):
        raise Unknown(operator)
    meta_args, meta_kwargs = pytree.tree_map_only(torch.Tensor, _meta, (args, kwargs))
    describe = _OWN.get(operator, overload)
    try:
        described = describe(*meta_args, **meta_kwargs)
    except (NotImplementedError, RuntimeError) as error:
        raise Unknown(operator) from error
    device = tensors[0].device
    given = {
        id(described): real
        for described, real in _written(overload, meta_args, meta_kwargs, args, kwargs)
    }

    def made(like: torch.Tensor) -> torch.Tensor:
        real = given.get(id(like))
        if real is None:
            real = torch.empty_strided(
                like.shape, like.stride(), dtype=like.dtype, device=device
            )
        elif real.shape != like.shape:
            real.resize_(like.shape)
        _forget(real)
        return real

    results = pytree.tree_map_only(torch.Tensor, made, described)
    if operator.startswith(_FFT):
        _work(results, device)
    return results


def _least_squares(
    a: torch.Tensor, b: torch.Tensor, *_: Any, **outputs: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Of the driver ``gels``, the only one on a GPU: it tells no rank."""
    has_many = b.dim() == a.dim()  # right sides
    batch, (rows, columns) = a.shape[:-2], a.shape[-2:]
    sides = b.shape[-1:] if has_many else ()
    left_over = (*batch, *sides) if rows > columns else (0,)
    shapes = (*batch, columns, *sides), left_over, (0,), (0,)
    names = "solution", "residuals", "rank", "singular_values"
    return tuple(
        outputs[name].resize_(shape) for name, shape in zip(names, shapes, strict=True)
    )


def _reflectors(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a QR decomposition, as LAPACK's ``geqrf`` has them."""
    count = min(a.shape[-2:])
    return torch.empty_like(a), a.new_empty((*a.shape[:-2], count))


_OWN = {"linalg_lstsq.out": _least_squares, "geqrf": _reflectors}


def _overload(operator: str) -> Any:
    import torch._meta_registrations

    name, _, which = operator.partition(".")
    return getattr(getattr(torch.ops.aten, name), which or "default")


def _is_there(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _is_dense_product(operator: str, args: tuple[Any, ...]) -> bool:
    """Whether it multiplies a sparse matrix and a dense one."""
    factors = [each for each in args if isinstance(each, torch.Tensor)][-2:]
    has_dense = any(each.layout is torch.strided for each in factors)
    return has_dense and operator.partition(".")[0].rstrip("_") in _PRODUCTS


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    if tensor.layout is not torch.strided:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
    )


def _written(
    overload: Any,
    meta_args: tuple[Any, ...],
    meta_kwargs: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Arguments that the operator writes to, as described and as they are."""
    for place, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        if argument.name in kwargs:
            yield meta_kwargs[argument.name], kwargs[argument.name]
        elif place < len(args):
            yield meta_args[place], args[place]


def _forget(tensor: torch.Tensor) -> None:
    """What is random is not known, whatever lay there."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    plain.random_(generator=torch.Generator(tensor.device))


def _work(results: Any, device: torch.device) -> None:
    """Takes, and gives back, what cuFFT works in: as much as a complex result.

    Its documentation says, of its work area, that it is one to eight times as large as
    the elements that are transformed.
    """
    most = max(result.numel() for result in pytree.tree_leaves(results))
    torch.empty(most, dtype=torch.complex64, device=device)
