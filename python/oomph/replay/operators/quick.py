"""What operators give whose results can be found in less time than PyTorch takes.

``FakeTensorMode`` takes 100 to 200 us for an operator. Most of a step do what is known:
they give a part of what they get, change it in its place, or are as an earlier one was,
since layers are alike.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)

_PLAIN = frozenset(
    [
        *(int, float, bool, str, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    ]
)
_Shape = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


class _Kind(enum.Enum):
    """What an operator gives."""

    PART = enum.auto()  # of its first argument, or all of it; writes nothing
    ITSELF = enum.auto()  # its first argument, changed in its place
    NOTHING = enum.auto()  # lists were changed in their place
    MADE = enum.auto()  # tensors of their own, by what it gets
    OTHER = enum.auto()


class _UnknownArgument(Exception):
    """Of a kind that may be more than it seems."""


class Quick:
    """Runs operators on tensors without memory.

    Args:
        fakes: Does so where nothing is known.
    """

    def __init__(self, fakes: FakeTensorMode) -> None:
        self._fakes = fakes
        # What was made of the same; None: it takes PyTorch to find out.
        self._made: dict[Any, list[Any] | None] = {}

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator gives.

        Args:
            func: The operator.
            args: Its arguments.
            kwargs: Those by name.
        """
        kind = _kind(func)
        given = tensors_among((*args, *kwargs.values()))
        if kind is _Kind.OTHER or not _are_strided_and_unknown(given):
            return func(*args, **kwargs)
        if kind is _Kind.NOTHING:
            return None
        if kind is _Kind.ITSELF:
            return args[0]
        if kind is _Kind.PART and len(given) == 1:
            return self._part(func, args, kwargs)
        if kind is _Kind.MADE and given:
            return self._as_before(func, args, kwargs, given)
        return func(*args, **kwargs)

    def _part(self, func: Any, args: Any, kwargs: Any) -> Any:
        device = args[0].fake_device
        with in_kernel_invocation_manager(self._fakes):
            part = func(*args, **kwargs)
        if isinstance(part, torch.Tensor):
            return FakeTensor(self._fakes, part, device)
        return type(part)(FakeTensor(self._fakes, each, device) for each in part)

    def _as_before(
        self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]
    ) -> Any:
        try:
            key = func, _key(args), _key([*kwargs.items()]), torch.get_default_dtype()
        except _UnknownArgument:
            return func(*args, **kwargs)
        shapes = self._made.get(key)
        if shapes is not None:
            made = [self._anew(s) if isinstance(s, tuple) else s for s in shapes]
            return made[0] if len(func._schema.returns) == 1 else tuple(made)
        result = func(*args, **kwargs)
        if key not in self._made:
            self._made[key] = _shapes_of(result, given)
        return result

    def _anew(self, made: _Shape) -> torch.Tensor:
        shape, stride, dtype, device = made
        with torch._C._DisableTorchDispatch():
            empty = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        return FakeTensor(self._fakes, empty, device)


@functools.cache
def _kind(func: Any) -> _Kind:
    schema = func._schema
    tags = torch.Tag.inplace_view, torch.Tag.data_dependent_output
    is_special = {*tags, torch.Tag.dynamic_output_shape} & {*func.tags}
    if func.namespace != "aten" or is_special or not schema.arguments:
        return _Kind.OTHER
    first, *others = (each.alias_info for each in schema.arguments)
    gives = [each.alias_info for each in schema.returns]
    if func is torch.ops.aten._unsafe_view.default:  # its schema does not say so
        return _Kind.PART
    if first is None and not any(others) and not any(gives):
        are_tensors = schema.returns and schema.returns[0].type.kind() == "TensorType"
        return _Kind.MADE if are_tensors else _Kind.OTHER
    if schema.name.startswith("aten::_foreach_") and not gives:
        return _Kind.NOTHING
    if first is None or any(others) or not all(gives):
        return _Kind.OTHER
    if not first.is_write:
        return _Kind.PART
    is_itself = len(gives) == 1 and schema.name.endswith("_")
    return _Kind.ITSELF if is_itself else _Kind.OTHER


def tensors_among(values: Iterable[Any]) -> list[torch.Tensor]:
    """Those among arguments or results, and in lists among these."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [part for part in value if isinstance(part, torch.Tensor)]
    return found


def _are_strided_and_unknown(given: list[torch.Tensor]) -> bool:
    """Whether they are fakes of which no values are known."""
    return all(
        isinstance(tensor, FakeTensor)
        and tensor.constant is None
        and tensor.layout is torch.strided
        for tensor in given
    )


def _key(value: Any) -> Any:
    """All that a result can depend on.

    Raises:
        _UnknownArgument: That is not known.
    """
    kind = type(value)
    if kind is FakeTensor:
        return value.shape, value.stride(), value.dtype, value.fake_device
    if kind is list or kind is tuple:
        return tuple(map(_key, value))
    if kind in _PLAIN:
        return kind, value  # 1, 1.0 and True are equal
    raise _UnknownArgument


def _shapes_of(result: Any, given: list[torch.Tensor]) -> list[Any] | None:
    """What is needed to make the same once more; None: there is more to it."""
    storages = {id(tensor.untyped_storage()) for tensor in given}
    found: list[Any] = []
    for made in result if isinstance(result, tuple) else [result]:
        if not isinstance(made, torch.Tensor):
            if type(made) not in _PLAIN:
                return None
            found.append(made)
            continue
        storage = made.untyped_storage()
        is_own = id(storage) not in storages and made.storage_offset() == 0
        if not is_own or not _are_strided_and_unknown([made]):
            return None
        dense = torch._prims_common.compute_required_storage_length(
            made.shape, made.stride(), 0
        )
        if storage.nbytes() != dense * made.itemsize:
            return None
        assert isinstance(made, FakeTensor)
        storages.add(id(storage))
        found.append((made.shape, made.stride(), made.dtype, made.fake_device))
    return found
