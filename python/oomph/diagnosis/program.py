"""What a program's objects show about its training: plain numbers, no tensors."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from oomph.memory import sites

ADAM_STATES = 2  # each as large as the parameter
WIDE = 4096  # elements: what a linear layer gives so many of are logits of tokens


@dataclass(frozen=True)
class Family:
    """Modules of one class of which a container has several.

    Attributes:
        name: Of their class.
        count: How many there are, in all containers.
        containers: How many containers have several.
        classes: Names of the classes at and below one of them.
        is_users: Whether the class is the user's, so that its lines are known.
        passed: How many of them forward is through with; None: it is in none of them,
            or there are several containers.
    """

    name: str
    count: int
    containers: int
    classes: frozenset[str]
    is_users: bool
    passed: int | None = None


@dataclass
class Program:
    """What was seen of the program.

    Attributes:
        parameter_shapes: Of the parameters on the device, with their bytes an element.
        input_shapes: Of the tensors that are inputs, with their bytes an element, the
            largest first.
        families: Of the modules that are no part of another family.
        token_shapes: Of the inputs that are whole numbers, the largest first.
        heads: What linear layers give that are in no family, and wide.
        vocabularies: Words that embeddings know, where they are many.
        sequential: Most children of an ``nn.Sequential``.
        optimizers: Names of the optimizers' classes; those of PyTorch that could work
            in one fused kernel, and do not, end with ``*``.
        classes: Names of the user's module classes.
        half: Some tensor that an operator made is of 16 bits an element.
        training: Some module is in training mode; None: there is no module.
        trained_bytes: Of the parameters that optimizers have.
        coming_bytes: State that optimizers have begun to make, and have not made yet.
        first_step_bytes: State that Adam and its kin will make in their first step.
        temporary_bytes: Of tensors that an optimizer's step makes for itself, in the
            one that makes most.
    """

    parameter_shapes: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    input_shapes: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    families: list[Family] = field(default_factory=list)
    token_shapes: list[tuple[int, ...]] = field(default_factory=list)
    heads: set[int] = field(default_factory=set)
    vocabularies: set[int] = field(default_factory=set)
    sequential: int = 0
    optimizers: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    half: bool = False
    training: bool | None = None
    trained_bytes: int = 0
    coming_bytes: int = 0
    first_step_bytes: int = 0
    temporary_bytes: int = 0

    def largest_parameter_bytes(self, rows: int = 0) -> int:
        """Of the parameters, or of those with so many rows, the largest."""
        sizes = (
            math.prod(shape) * size
            for shape, size in self.parameter_shapes
            if rows in (0, *shape[:1])
        )
        return max(sizes, default=0)

    def tokens(self) -> set[int]:
        """How many tokens the inputs that may be tokens have."""
        return {math.prod(shape) for shape in self.token_shapes if len(shape) in (1, 2)}

    def batch(self) -> int:
        """Its size: the first dimension of the tokens, or of the largest input.

        0 if there is neither.
        """
        tokens = [shape for shape in self.token_shapes if len(shape) == 2]
        others = [shape for shape, _ in self.input_shapes if len(shape) > 1]
        return max(tokens or others, key=math.prod)[0] if tokens or others else 0

    def columns(self) -> int:
        """Of the logits of tokens, by what makes them; 0: not known."""
        return max(self.heads & self.vocabularies or self.heads, default=0)


def note_modules(program: Program, modules: list[Any], active: Sequence[int]) -> None:
    """Notes all that modules tell.

    Args:
        program: Is changed.
        modules: All of them.
        active: Identities of those whose forward runs, by ``_C.active_modules``.
    """
    import torch

    for module in modules:
        kind, known = type(module), module.__dict__
        if not _is_torchs(kind):
            program.classes.add(kind.__qualname__)
        if isinstance(module, torch.nn.Sequential):
            program.sequential = max(program.sequential, len(_children(module)))
        if _is_wide(known.get("num_embeddings")):
            program.vocabularies.add(known["num_embeddings"])
    if modules:
        program.training = any(m.__dict__.get("training") for m in modules)
    containers = _containers(modules)
    program.families = _families(containers, active)
    members = (m for lists in containers.values() for alike in lists for m in alike)
    inside = {id(module) for member in members for module in _below(member)}
    for module in modules:
        width = module.__dict__.get("out_features")
        if _is_wide(width) and id(module) not in inside:
            program.heads.add(width)


def note_inputs(program: Program, tensors: list[Any]) -> None:
    """Notes the shapes of the inputs, given the largest first."""
    program.input_shapes = [shape_of(tensor) for tensor in tensors]
    program.token_shapes = [
        shape
        for tensor, (shape, size) in zip(tensors, program.input_shapes, strict=True)
        if size >= 4 and not (tensor.is_floating_point() or tensor.is_complex())
    ]


def note_optimizer(program: Program, name: str, known: dict[str, Any]) -> None:
    """Notes what an optimizer tells.

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
        else:
            without += bytes_of(parameter)
    program.trained_bytes += with_state + without
    program.temporary_bytes = max(program.temporary_bytes, _temporary_bytes(groups))
    if made:
        program.coming_bytes += without * made // max(1, with_state)
    elif "Adam" in name:
        program.first_step_bytes += ADAM_STATES * without


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
        sizes = [bytes_of(parameter) for parameter in group["params"]]
        at_a_time = max(sizes, default=0) if group["foreach"] is False else sum(sizes)
        most = max(most, at_a_time)
    return most


def _is_wide(width: Any) -> bool:
    return isinstance(width, int) and width >= WIDE


def _containers(modules: list[Any]) -> dict[type, list[list[Any]]]:
    """Of each class whose modules are parts of others, those that lie together."""
    found: dict[type, list[list[Any]]] = {}
    for module in modules:
        children = _children(module)
        for kind in set(map(type, children)):
            alike = [child for child in children if type(child) is kind]
            if len(alike) > 1 and _has_forward_of_parts(alike[0]):
                found.setdefault(kind, []).append(alike)
    return found


def _families(
    containers: dict[type, list[list[Any]]], active: Sequence[int]
) -> list[Family]:
    found = [_family(kind, alike, active) for kind, alike in containers.items()]
    found = [
        family
        for family in found
        if not any(
            family.name in other.classes and family.name != other.name
            for other in found
        )
    ]
    theirs = [family for family in found if not family.is_users]
    if len(theirs) < 2:
        return found
    return [*(family for family in found if family.is_users), _joined(theirs)]


def _joined(families: list[Family]) -> Family:
    """As one: what each of several of a library's has saved, no line tells."""
    return Family(
        " and ".join(family.name for family in families),
        sum(family.count for family in families),
        sum(family.containers for family in families),
        frozenset[str]().union(*(family.classes for family in families)),
        is_users=False,
    )


def _family(kind: type, containers: list[list[Any]], active: Sequence[int]) -> Family:
    members = {id(member) for alike in containers for member in alike}
    passed = None
    if len(containers) == 1:
        order = [id(member) for member in containers[0]]
        passed = next((order.index(a) for a in active if a in members), None)
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None) or "<>"
    return Family(
        kind.__qualname__,
        len(members),
        len(containers),
        frozenset(type(m).__qualname__ for m in _below(containers[0][0])),
        kind.__module__ == "__main__" or sites.is_user(file),
        passed,
    )


def _has_forward_of_parts(module: Any) -> bool:
    """Whether its class is worth recomputing: the user's, or one made of others.

    Two ``nn.Sequential`` need not be alike.
    """
    import torch

    nn = torch.nn
    if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        return False
    return not _is_torchs(type(module)) or bool(_children(module))


def _is_torchs(kind: type) -> bool:
    return kind.__module__.startswith("torch.")


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
