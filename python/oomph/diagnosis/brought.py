"""Whether what was asked for is data: brought to a device, not computed there."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from types import FrameType, TracebackType
from typing import Any

from oomph.holders.frames import position_of, variables
from oomph.replay.statements import stack_of

_MODELS = ("torch.nn.", "torch.optim.", "torch.autograd.")  # what they make is theirs
_ITEMS = 64  # of a container are looked at


def is_data(traceback: TracebackType | None) -> bool:
    """Whether nothing that is on a device goes into the call that failed.

    Such as ``images.to("cuda")`` of a whole data set, or ``torch.zeros(...)`` of a
    buffer; outside of models and optimizers.

    Args:
        traceback: Of the error.

    Returns:
        Whether it is so; False where the call cannot be read, too.
    """
    import torch

    frames = [frame for frame, _ in stack_of(traceback)]
    names = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    if any(name.startswith(_MODELS) for name in names):
        return False
    outer = [
        frame
        for frame, name in zip(frames, names, strict=True)
        if name.partition(".")[0] != "torch"
    ]
    if not outer:
        return False
    own = variables(outer[0])
    if isinstance(own.get("self"), torch.nn.Module):
        return False
    known = {**outer[0].f_builtins, **outer[0].f_globals, **own}
    try:
        return not any(map(_is_on_device, _values(_expression(outer[0]), known)))
    except (SyntaxError, LookupError):
        return False


def _expression(frame: FrameType) -> ast.AST:
    """What a frame is at; in Python 3.10 its line.

    Raises:
        SyntaxError, LookupError: That is not known.
    """
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    if sys.version_info < (3, 11):
        return ast.parse("".join(lines[frame.f_lineno - 1 : frame.f_lineno]).strip())
    first, last, start, end = position_of(frame)
    if first is None or last is None or last > len(lines):
        raise LookupError(frame.f_lineno)
    text = [line.encode() for line in lines[first - 1 : last]]
    text[-1] = text[-1][:end]
    text[0] = text[0][start:]
    return ast.parse(b"(" + b"".join(text) + b")")


def _values(tree: ast.AST, known: Mapping[str, Any]) -> Iterator[Any]:
    """What an expression names.

    Raises:
        LookupError: Of something it is not known what it is.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield known[node.id]
        if isinstance(node, ast.Attribute):
            yield _attribute(node, known)


def _attribute(node: ast.Attribute, known: Mapping[str, Any]) -> Any:
    """Its value; None: what it is of says all.

    Raises:
        LookupError: It would have to be computed.
    """
    import torch

    owner: Any = None
    if isinstance(node.value, ast.Name):
        owner = known[node.value.id]
    elif isinstance(node.value, ast.Attribute):
        owner = _attribute(node.value, known)
    if owner is None or isinstance(owner, torch.Tensor):
        return None
    value = inspect.getattr_static(owner, node.attr, None)
    if value is None or isinstance(value, property):
        raise LookupError(node.attr)
    return value


def _is_on_device(value: Any) -> bool:
    import torch

    items = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple):
        items = ()
    tensors = chain([value], islice(items, _ITEMS))
    return any(isinstance(each, torch.Tensor) and each.is_cuda for each in tensors)
