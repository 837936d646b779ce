"""What a program's objects show about its training: plain numbers, no tensors."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Program:
    """What was seen of the program.

    Attributes:
        parameter_shapes: Of the parameters on the device, with their bytes an element.
        input_shapes: Of the tensors that are inputs, with their bytes an element, the
            largest first.
        untrained: The outermost modules whose parameters no optimizer has: how they are
            called, and the identities of all that are called so.
        table_bytes: Of the parameters of embeddings.
        optimizers: Names of the optimizers' classes; those of PyTorch that could work
            in one fused kernel, and do not, end with ``*``.
        is_sharded: Some parameter is a part of one, of which other ranks have the rest.
        copies_gradients: To buckets, which DDP could have as gradients.
        classes: Names of the user's module classes.
        half: Some tensor that an operator made is of 16 bits an element.
        training: Some module with parameters is in training mode; None: there is none.
        trained_bytes: Of the parameters that optimizers have.
        coming_bytes: State that optimizers have begun to make, and have not made yet.
        temporary_bytes: Of tensors that an optimizer's step makes for itself, in the
            one that makes most.
    """

    parameter_shapes: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    input_shapes: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    untrained: list[tuple[str, list[int]]] = field(default_factory=list)
    table_bytes: int = 0
    optimizers: set[str] = field(default_factory=set)
    is_sharded: bool = False
    copies_gradients: bool = False
    classes: set[str] = field(default_factory=set)
    half: bool = False
    training: bool | None = None
    trained_bytes: int = 0
    coming_bytes: int = 0
    temporary_bytes: int = 0

    @property
    def unfused(self) -> str:
        """An optimizer that could work in one fused kernel; "" if there is none."""
        names = (name.rstrip("*") for name in self.optimizers if "*" in name)
        return next(names, "")

    @property
    def has_halves(self) -> bool:
        """Whether some parameter has 16 bits an element."""
        return any(size == 2 for _, size in self.parameter_shapes)

    @property
    def wide_bytes(self) -> int:
        """Of the parameters with 32 bits an element."""
        wide = (shape for shape, size in self.parameter_shapes if size == 4)
        return 4 * sum(map(math.prod, wide))


def note_modules(program: Program, modules: list[Any], trained: set[int]) -> None:
    """Notes all that modules say.

    Args:
        program: Is changed.
        modules: All of them.
        trained: Identities of the parameters that optimizers have.
    """
    for module in modules:
        kind, known = type(module), module.__dict__
        if not kind.__module__.startswith("torch."):
            program.classes.add(kind.__qualname__)
        program.copies_gradients |= known.get("gradient_as_bucket_view") is False
        if "num_embeddings" in known:
            program.table_bytes += sum(map(bytes_of, _parameters(module)))
    layers = [module for module in modules if _parameters(module)]
    if layers:
        program.training = any(layer.__dict__.get("training") for layer in layers)
    if trained:
        inside = {id(child) for module in modules for child in _children(module)}
        found: dict[str, list[int]] = {}
        for root in modules:
            if id(root) not in inside:
                for module in _untrained(root, trained):
                    found.setdefault(type(module).__qualname__, []).append(id(module))
        program.untrained = list(found.items())


def _untrained(module: Any, trained: set[int]) -> Iterator[Any]:
    """The outermost modules with parameters of which none is trained."""
    below = [p for part in _below(module) for p in _parameters(part)]
    if below and not any(id(parameter) in trained for parameter in below):
        yield module
    elif below:
        for child in _children(module):
            yield from _untrained(child, trained)


def bucket_sizes(modules: list[Any]) -> Counter[int]:
    """Bytes of the blocks of DDP's buckets, as it logs them, and how many there are."""
    found: Counter[int] = Counter()
    for module in modules:
        if "reducer" in module.__dict__ and "logger" in module.__dict__:
            logged = module.logger._get_ddp_logging_data().strs_map
            for name in ("bucket_sizes", "rebuilt_bucket_sizes"):
                sizes = re.findall(r"\d+", logged.get(name, ""))
                found.update(-(-int(size) // 512) * 512 for size in sizes)
    return found


def note_inputs(program: Program, tensors: list[Any]) -> None:
    """Notes the shapes of the inputs, given the largest first."""
    program.input_shapes = [shape_of(tensor) for tensor in tensors]


def note_optimizer(program: Program, name: str, known: dict[str, Any]) -> None:
    """Notes what an optimizer says.

    Args:
        program: Is changed.
        name: Of its class.
        known: Its attributes.
    """
    groups, state = known.get("param_groups") or [{}], known.get("state") or {}
    unfused = "fused" in groups[0] and not groups[0]["fused"]
    program.optimizers.add(name + "*" * unfused)
    with_state, without, made = 0, 0, 0
    for parameter in (p for group in groups for p in group.get("params", [])):
        if parameter in state:
            with_state += bytes_of(parameter)
            made += sum(bytes_of(t) for t in tensors_in(state[parameter]))
        elif parameter.requires_grad:  # the others are given, and left out by its step
            without += bytes_of(parameter)
    program.trained_bytes += with_state + without
    program.temporary_bytes = max(program.temporary_bytes, _temporary_bytes(groups))
    if made:
        program.coming_bytes += without * made // max(1, with_state)


def _temporary_bytes(groups: list[dict[str, Any]]) -> int:
    """What a step of one of PyTorch's optimizers makes beside its state, about.

    One that works on all parameters at once needs as much as they have: for the root
    of Adam's second moments, or gradients with weight decay. SGD without has none.
    """
    most = 0
    for group in groups:
        known = "foreach" in group and not group.get("fused")
        if not known or ("dampening" in group and not group["weight_decay"]):
            continue
        sizes = [bytes_of(p) for p in group["params"] if p.requires_grad]
        at_a_time = max(sizes, default=0) if group["foreach"] is False else sum(sizes)
        most = max(most, at_a_time)
    return most


def _parameters(module: Any) -> list[Any]:
    known = module.__dict__.get("_parameters") or {}
    return [parameter for parameter in known.values() if parameter is not None]


def _children(module: Any) -> list[Any]:
    known = module.__dict__.get("_modules") or {}
    return [child for child in known.values() if child is not None]


def _below(module: Any) -> Iterator[Any]:
    yield module
    for child in _children(module):
        yield from _below(child)


# ---- Shapes


def shape_of(tensor: Any) -> tuple[tuple[int, ...], int]:
    """Shape and bytes an element, of a tensor of PyTorch's own classes."""
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return (), 0
    return tuple(tensor.shape), tensor.element_size()


def is_part(parameter: Any) -> bool:
    """Whether a parameter is held in parts by several ranks, of which this has one.

    That shows in what FSDP2 makes of it (a ``DTensor``), FSDP1 (a ``FlatParameter``),
    or ZeRO-3 of DeepSpeed.
    """
    placements = getattr(parameter, "placements", ())
    if placements:
        counts = parameter.device_mesh.shape
        pairs = zip(placements, counts, strict=True)
        return any(placed.is_shard() and count > 1 for placed, count in pairs)
    known = getattr(parameter, "__dict__", {})
    return "_sharded_size" in known or "ds_tensor" in known


def bytes_of(tensor: Any) -> int:
    """What its elements take; 0 if it is of no class of PyTorch's own."""
    shape, size = shape_of(tensor)
    return math.prod(shape) * size


def tensors_in(value: Any, depth: int = 4) -> Iterator[Any]:
    """All that lies in dicts and lists, whatever it is."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple) and depth > 0:
        for entry in value:
            yield from tensors_in(entry, depth - 1)
    else:
        yield value
