"""What is there when a step begins, made so that the step can run again.

A step that failed half-way has left gradients, states, graphs and longer caches behind.
A copy from before would have cost memory in every step, so what it made is undone
instead, as far as it can be told: in the forked child alone. That costs some walks over
the objects that Python's collector knows.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.amp.grad_scaler import GradScaler
from torch.utils._pytree import tree_leaves

from oomph import _torch
from oomph.holders.saved import address_of, nodes
from oomph.replay.statements import Stretch, take_variables
from oomph.replay.tracking import Tracker


def _moved(optimizers: list[Any]) -> Iterator[tuple[dict[str, Any], str, torch.device]]:
    """States on the CPU whose parameters are not: no optimizer of PyTorch's has any.

    Lightning moves them with an error on its way. Gives the dict, the name, and where
    the parameter is.
    """
    for states in {id(o.state): o.state for o in optimizers}.values():
        for parameter, state in states.items():
            size = getattr(parameter, "is_cuda", False) and parameter.numel()
            for name, value in list(state.items()) if size > 1 else ():
                is_on_cpu = (
                    isinstance(value, torch.Tensor) and value.device.type == "cpu"
                )
                if is_on_cpu and value.numel() == size:
                    yield state, name, parameter.device


def moved_bytes(objects: list[Any]) -> int:
    """Bytes of optimizers' states that were moved to the CPU since the step failed."""
    optimizers = [o for o in objects if issubclass(type(o), torch.optim.Optimizer)]
    return sum(state[name].nbytes for state, name, _ in _moved(optimizers))


def bring_back_states(optimizers: list[Any], tracker: Tracker, size_bytes: int) -> None:
    """States that were moved to the CPU are on the device again.

    Args:
        optimizers: That have them.
        tracker: Counts what is made.
        size_bytes: Of those that count as there, though they were moved.
    """
    tracker.ledger.change(-max(0, size_bytes))
    with tracker.fakes, tracker:
        for state, name, device in _moved(optimizers):
            state[name] = torch.empty_like(state[name], device=device)


def _drop_half_made(optimizers: list[Any]) -> None:
    """Optimizers make their state where there is none; the last may be half made.

    Some have all of it from the begin: one that has as much as others stays.
    """
    for optimizer in optimizers:
        made = [*optimizer.state]
        sizes = [len(optimizer.state[parameter]) for parameter in made]
        if made and (len(made) == 1 or sizes[-1] < max(sizes)):
            del optimizer.state[made[-1]]


def _tensors(objects: list[Any]) -> list[torch.Tensor]:
    return [o for o in objects if issubclass(type(o), torch.Tensor)]


def _gradients(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those that Python has no objects for are among them."""
    return [t.grad for t in tensors if t.is_leaf and t.grad is not None]


def _drop_gradients(objects: list[Any]) -> None:
    """Frees the gradients that a failed iteration made: its begin did not have them.

    Those that an iteration leaves to the next one are there as that begins.
    """
    for tensor in _tensors(objects):
        if tensor.is_leaf and tensor.grad is not None:
            tensor.grad = None


def _forget_scaling(objects: list[Any]) -> None:
    """Has gradient scalers take each optimizer for one that is not in a step yet."""
    for scaler in (o for o in objects if issubclass(type(o), GradScaler)):
        scaler._per_optimizer_states.clear()


def undo_backward(
    objects: list[Any], optimizers: list[Any], drops_gradients: bool
) -> None:
    """A step that ended in backward, or in an optimizer's, can begin once more."""
    _drop_half_made(optimizers)
    _forget_scaling(objects)
    if drops_gradients:
        _drop_gradients(objects)


def undo_joins(
    objects: list[Any], joined: dict[int, tuple[int, int]]
) -> frozenset[int]:
    """Cuts what the step had joined to as it ended, such as a cache of keys.

    Returns:
        Addresses of those that were not joined, but kept as they came: nothing was
        there before, and they are parts of others, or laid out like these.
    """
    as_they_came = set()
    for tensor in _tensors(objects) if joined else ():
        where = joined.get(address_of(tensor)) if tensor.is_cuda else None
        if where is not None and tensor.ndim > where[0]:
            dim, length = where
            size = tensor.untyped_storage().nbytes()
            if not (length or (tensor.is_contiguous() and size == tensor.nbytes)):
                as_they_came.add(address_of(tensor))
            with torch.inference_mode():
                tensor.data = tensor.narrow(dim, 0, length)
    return frozenset(as_they_came)


def without_ranks(modules: list[nn.Module]) -> None:
    """DDP hands its calls on: what it sends to others has no memory of its own."""
    for module in modules:
        if "reducer" in module.__dict__:
            module.__dict__["forward"] = module.module


def expect_converted(mode: FakeTensorMode, tracker: Tracker) -> None:
    """What is made of a real tensor takes no memory of its own."""
    converter = mode.fake_tensor_converter
    convert = converter.from_real_tensor

    def expected(*args: Any, **kwargs: Any) -> FakeTensor:
        made = convert(*args, **kwargs)
        tracker.expect(made, next(a for a in args if isinstance(a, torch.Tensor)))
        return made

    converter.from_real_tensor = expected  # type: ignore[method-assign]


def take_names(stretch: Stretch, first: int, made: Container[int]) -> dict[str, Any]:
    """The variables of the frame, without those that the step makes anew.

    Those of the calls that the frame waited for are gone.
    """
    for frame in stretch.inner:
        take_variables(frame, is_inner=True)
    names = take_variables(stretch.frame)
    unbound = stretch.unbound() if first == 0 else set()
    for name in stretch.bound_first(first):
        is_anew = any(_is_of(value, made) for value in tree_leaves(names.get(name)))
        if is_anew or name in unbound:
            names.pop(name, None)
    return names


def _is_of(value: object, made: Container[int]) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return False
    return value.grad_fn is not None and address_of(value) in made


def let_go_of_graphs(
    objects: list[Any], names: dict[str, Any], made: Container[int], since: int
) -> None:
    """Frees what graphs have saved that the failed forward left in other places.

    A module may keep its last output, or a hook have stored it: as the iteration
    begins, the one of the iteration before is there, and backward has freed what its
    graph had saved.

    Args:
        objects: All that there are.
        names: The variables that the iteration begins with; their graphs are kept.
        made: As ``gone`` of :class:`oomph.replay.search.Search`.
        since: The number of autograd's next node as the step began.
    """
    own = _tensors(tree_leaves(names))
    left = [tensor for tensor in _tensors(objects) if _is_of(tensor, made)]
    kept = {*nodes({t.grad_fn for t in own} - {None})}
    for node in nodes({t.grad_fn for t in left} - {None}):
        is_of_pytorch = not isinstance(node, torch._C._FunctionBase)
        if is_of_pytorch and node not in kept and node._sequence_nr() >= since:
            _torch.release_saved(node)


def sizes_of(objects: list[Any], device: int) -> dict[int, int]:
    """The bytes of the tensors on a device, by where they begin."""
    return {
        address_of(tensor): tensor.untyped_storage().nbytes()
        for tensor in _tensors(objects)
        if _is_on(tensor, device)
    }


def _is_on(tensor: torch.Tensor, device: int) -> bool:
    """Whether all of its memory is one storage on that device.

    What torch.func makes of a tensor has none: the tensor within has it.
    """
    if not tensor.is_cuda or tensor.layout is not torch.strided:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return (tensor.device.index or 0) == device


def watch_real(tracker: Tracker, objects: list[Any], gone: Container[int]) -> None:
    """Counts what the step gives back of what was there, and what is held after all."""
    tensors = _tensors(objects)
    for tensor in (*tensors, *_gradients(tensors)):
        if _is_on(tensor, tracker.device):
            tracker.ledger.watch_real(tensor, address_of(tensor) in gone)
