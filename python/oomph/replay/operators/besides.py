"""What operators take on CUDA beside their results, and give back as they end.

A tensor without memory shows what an operator gives. PyTorch's kernels for CUDA need
more for a moment: products before they are summed up, partial sums of many blocks of
threads. Some losses keep more for as long as they live. The rules are those of
PyTorch's sources (``Reduce.cuh``, ``Loss.cu``, ``SoftMax.cu``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

_aten = torch.ops.aten
_BLOCK_THREADS = 512  # of a block that reduces
_WARP_THREADS = 32
_VALUES_MIN, _VALUES_MAX = 16, 256  # that a thread sums up
_VECTOR = 4  # results of one thread
_WELFORD_BYTES = 16  # mean, squares and two counts
_INDEXED_BYTES = 16  # a value and where it is

_AS_LARGE = {
    _aten._softmax_backward_data.default: 1,
    _aten.binary_cross_entropy_with_logits.default: 2,
    _aten.huber_loss.default: 1,
    _aten.logsumexp.default: 1,
}
"""So many times what they are given."""
_ATTENTION = {  # whose backward has a part of a gradient in float32: padded heads
    _aten._scaled_dot_product_flash_attention_backward.default: 32,
    _aten._scaled_dot_product_efficient_attention_backward.default: 64,
}
_READS_ROWS = frozenset(
    [
        *(_aten._softmax.default, _aten._log_softmax.default),
        *(_aten._softmax_backward_data.default, _aten.cumsum.default),
        *(_aten._log_softmax_backward_data.default, _aten.topk.default),
        *(_aten.native_layer_norm.default, _aten.native_layer_norm_backward.default),
        *(_aten._fused_rms_norm.default, _aten._fused_rms_norm_backward.default),
        *(_aten.im2col.default, _aten.col2im.default, _aten.reflection_pad2d.default),
    ]
)
"""These copy what is not contiguous."""
_CONVOLUTIONS = {  # and where their input and weight are
    _aten.convolution.default: slice(2),
    _aten.convolution_backward.default: slice(1, 3),
}
"""These copy all that does not lie as the input or the weight does."""
_READS_IMAGES = frozenset(
    [
        *(_aten.upsample_nearest2d.default, _aten.upsample_bilinear2d.default),
        *(_aten.max_pool2d_with_indices.default, _aten.avg_pool2d.default),
        *(_aten._adaptive_avg_pool2d.default, _aten.native_batch_norm.default),
        _aten.cudnn_batch_norm.default,
    ]
)
"""These do if the channels do not come last either."""
_SORTED_MAX = 4096  # numbers that one block of threads sorts in place
_SUMS = [_aten.sum.dim_IntList, _aten.mean.dim, _aten.linalg_vector_norm.default]
_SUMS += [_aten.prod.dim_int, _aten.nansum.default]
_EXTREMES = [_aten.amax.default, _aten.amin.default]
_SUMS_ALL = [_aten.sum.default, _aten.cumsum.default, _aten.cumprod.default]
_SUMS_ALL += [_aten.prod.default, *_SUMS]
_SPREADS = [_aten.var.correction, _aten.std.correction]
_SPREADS += [_aten.var_mean.correction, _aten.std_mean.correction]
_CHOICES = [_aten.max.dim, _aten.min.dim, _aten.argmax.default, _aten.argmin.default]
_REDUCES = dict.fromkeys([*_SUMS, *_EXTREMES], 0)
_REDUCES |= dict.fromkeys(_SPREADS, _WELFORD_BYTES)
_REDUCES |= dict.fromkeys(_CHOICES, _INDEXED_BYTES)
"""Bytes of what a thread has of each result; 0: as large as the numbers are."""
IN_PLACE = {
    _aten.scatter_add.default: _aten.scatter_add_.default,
    _aten.index_put.default: _aten.index_put_.default,
    _aten.masked_scatter.default: _aten.masked_scatter_.default,
}
"""What backward does in place, unless tensors are of a class of their own."""


class Card(NamedTuple):
    """What of a device says how it reduces, and what it has.

    Attributes:
        processors: How many streaming multiprocessors it has.
        threads: How many may run in each.
        memory_bytes: Its memory.
    """

    processors: int
    threads: int
    memory_bytes: int = 0

    @classmethod
    def of(cls, device: int) -> Card:
        """A device of this process, where CUDA was begun."""
        found = torch.cuda.get_device_properties(device)
        return cls(
            found.multi_processor_count,
            found.max_threads_per_multi_processor,
            found.total_memory,
        )


def bytes_of(
    func: Any, args: Sequence[Any], kwargs: Any, result: Any, card: Card
) -> int:
    """What an operator takes while it runs, beside what it is given and what it gives.

    Args:
        func: The operator's overload.
        args: Its arguments, the first a tensor on the device.
        kwargs: Those with names.
        result: What it gave.
        card: It runs on.

    Returns:
        Bytes; 0 if nothing is known of it.
    """
    copied = _copied_bytes(func, args)
    return copied + _passing_bytes(func, args, kwargs, result, card)


def _copied_bytes(func: Any, args: Sequence[Any]) -> int:
    """Copies of what an operator is given, as it reads by position."""
    if func in _CONVOLUTIONS:
        return _convolved_bytes(args, _CONVOLUTIONS[func])
    if func not in _READS_ROWS and func not in _READS_IMAGES:
        return 0
    given = [tensor for tensor in args[:2] if isinstance(tensor, torch.Tensor)]
    return sum(
        tensor.nbytes
        for tensor in given
        if not tensor.is_contiguous()
        and not (func in _READS_IMAGES and _has_channels_last(tensor))
    )


def _convolved_bytes(args: Sequence[Any], places: slice) -> int:
    """Where channels come last in the input or the weight, they do in everything."""
    is_last = any(
        _has_channels_last(tensor) and not tensor.is_contiguous()
        for tensor in args[places]
    )
    fits = _has_channels_last if is_last else torch.Tensor.is_contiguous
    return sum(int(t.nbytes) for t in args[: places.stop] if not fits(t))


def _has_channels_last(tensor: torch.Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    known = formats.get(tensor.ndim)
    return known is not None and tensor.is_contiguous(memory_format=known)


def _passing_bytes(
    func: Any, args: Sequence[Any], kwargs: Any, result: Any, card: Card
) -> int:
    """What else it makes and gives back."""
    first = args[0]
    if func in _AS_LARGE:
        return _AS_LARGE[func] * int(first.nbytes)
    if func is _aten.masked_scatter_.default:
        return 8 * int(first.numel())  # how many of the mask came before each
    if func in _ATTENTION:
        return _attention_bytes(_ATTENTION[func], *args[:5])
    if func in (_aten.sort.default, _aten.sort.stable):
        return _sorted_bytes(first, kwargs.get("dim", args[-1]))
    if func in _SUMS_ALL and first.numel():
        return _reduced_bytes(func, args, kwargs, result, card)
    if func in _REDUCES and first.numel():
        each = _REDUCES[func] or first.element_size()
        return _partial_bytes(first, _dims(func, args, kwargs), each, card)
    return 0


def _reduced_bytes(
    func: Any, args: Sequence[Any], kwargs: Any, result: torch.Tensor, card: Card
) -> int:
    """Of what sums up numbers of one type in another, a copy in that comes first."""
    first, each = args[0], max(4, args[0].element_size())
    copied = 0
    if not first.is_floating_point() and result.dtype != first.dtype:
        each = result.element_size()
        copied = first.numel() * each
    if func not in _REDUCES:
        return copied
    return copied + _partial_bytes(first, _dims(func, args, kwargs), each, card)


def _attention_bytes(padded: int, gradient: Any, query: Any, *rest: Any) -> int:
    """The query's gradient is summed up in float32; the kernels read by position."""
    rows, heads, places, width = map(int, query.shape)
    places, width = -(-places // 128) * 128, -(-width // padded) * padded
    size_bytes = 4 * rows * heads * places * (width + 1)
    read = (gradient, rest[-1]) if padded == 32 else (gradient,)
    for tensor in read:  # its gradient, and flash's result
        if not tensor.transpose(1, 2).is_contiguous():
            size_bytes += int(tensor.nbytes)
    return size_bytes


def _sorted_bytes(tensor: torch.Tensor, dim: Any) -> int:
    """The copies and the places, both twice, of what is sorted by radix."""
    dim = dim if type(dim) is int else -1
    if not tensor.ndim or tensor.shape[dim] <= _SORTED_MAX:
        return 0
    return int(tensor.numel() * (16 + tensor.element_size()))


def _dims(func: Any, args: Sequence[Any], kwargs: Any) -> set[int]:
    """Along which an operator reduces."""
    tensor = args[0]
    place = 2 if func is _aten.linalg_vector_norm.default else 1
    given = args[place] if len(args) > place else kwargs.get("dim")
    if given is None or given == []:
        return set(range(tensor.ndim))
    dims = given if isinstance(given, list | tuple) else [given]
    return {dim % max(1, tensor.ndim) for dim in dims}


def _partial_bytes(tensor: torch.Tensor, dims: set[int], each: int, card: Card) -> int:
    """The partial sums, where several blocks of threads work for the same results.

    They are many where the results lie side by side and what is summed up does not, as
    in the gradient of a bias.

    Args:
        tensor: That is reduced.
        dims: Along which.
        each: Bytes of a partial sum.
        card: It runs on.
    """
    sides = [*zip(tensor.shape, tensor.stride(), strict=True)]
    kept = [side for dim, side in enumerate(sides) if dim not in dims and side[0] > 1]
    inner = [side for dim, side in enumerate(sides) if dim in dims and side[0] > 1]
    if not kept or not inner:
        return 0
    width, stride = min(kept, key=lambda side: side[1])
    if min(side[1] for side in inner) < stride:
        return 0  # lanes of a warp share a result: a sum for each block alone
    results = prod(n for n, _ in kept)
    vector = 1
    if stride == 1:
        others = [s for n, s in (*kept, *inner) if s != stride]
        vector = _vector(width, *others, int(tensor.storage_offset()))
    return _blocks_bytes(results, tensor.numel() // results, vector, each, card)


def _vector(*counts: int) -> int:
    """How many results a thread can work for."""
    size = _VECTOR
    while any(count % size for count in counts):
        size //= 2
    return size


def _blocks_bytes(results: int, count: int, vector: int, each: int, card: Card) -> int:
    """The same for so many results of so many numbers."""
    most = _BLOCK_THREADS // vector
    across, down = (_power_of_2(n, most) for n in (results // vector, count))
    wide = min(across, _WARP_THREADS)
    high = min(down, most // wide)
    wide = min(across, most // high)
    values = -(-count // high)  # of a thread, if the warps share the results
    if count < min(high * _VALUES_MIN, _VALUES_MAX) or values < _VALUES_MAX:
        return 0
    grid = -(-(results // vector) // wide)
    target = card.processors * (card.threads // (wide * high))
    if grid > target:
        return 0
    blocks = min(-(-target // grid), -(-values // _VALUES_MIN))
    blocks = max(blocks, -(-values // _VALUES_MAX))
    return each * results * blocks * wide * vector if blocks > 1 else 0


def _power_of_2(count: int, most: int) -> int:
    """The largest that is in it."""
    return most if count >= most else 1 << max(0, count.bit_length() - 1)


def _kept_whole(
    values: torch.Tensor, target: torch.Tensor, *arguments: Any, **_: Any
) -> torch.Tensor:
    """A loss that is reduced in the memory of all its values, which it keeps."""
    whole = values + target
    reduction = next((a for a in arguments if type(a) is int), 1)
    return whole if reduction == 0 else whole.resize_(())


# Losses of which the single number takes as much as all of them.
LOSSES: dict[Any, Callable[..., Any]] = {
    _aten.mse_loss.default: _kept_whole,
    _aten.smooth_l1_loss.default: _kept_whole,
    _aten.binary_cross_entropy.default: _kept_whole,
}
