"""Numbers of type bfloat16 in Triton's interpreter.

NumPy has no such type, so the interpreter keeps their 16 bits as integers, multiplies
and adds these, and gives noise. Here they are computed in float32 and rounded to the
nearest, as a GPU does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np


def rounded(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of the nearest bfloat16 of each float32; of two, the even one."""
    bits = values.astype(np.float32).view(np.uint32)
    up = ((bits >> 16) & 1) + 0x7FFF
    found = np.where(np.isnan(values), (bits >> 16) | 0x40, (bits + up) >> 16)
    return found.astype(np.uint16)


def widened(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The float32 of the bits of each bfloat16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def teach(interpreter: Any) -> None:
    """Has a module ``triton.runtime.interpreter`` compute with them."""
    types = interpreter.tl  # which are not there yet
    handle = interpreter.TensorHandle
    builder = interpreter.InterpreterBuilder

    def is_narrow(value: Any) -> bool:
        return isinstance(value, handle) and value.dtype.scalar == types.bfloat16

    def widen(value: Any) -> Any:
        return handle(widened(value.data), types.float32) if is_narrow(value) else value

    def in_float32(method: Callable[..., Any]) -> Callable[..., Any]:
        """Of a method of the builder whose result has the type of its arguments."""

        @functools.wraps(method)
        def call(self: Any, *values: Any) -> Any:
            if not any(map(is_narrow, values)):
                return method(self, *values)
            found = method(self, *map(widen, values))
            if found.data.dtype != np.float32:  # a comparison
                return found
            return handle(rounded(found.data), types.bfloat16)

        return call

    for name in ("unary_op", "binary_op", "ternary_op", "create_fma"):
        setattr(builder, name, in_float32(getattr(builder, name)))

    multiply = builder.create_dot

    def dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return multiply(self, widen(a), widen(b), *others)

    builder.create_dot = dot
    cast, convert = builder.cast_impl, interpreter._convert_float

    def cast_impl(self: Any, source: Any, type_: Any) -> Any:
        if type_.scalar != types.bfloat16:
            return cast(self, widen(source), type_)
        if is_narrow(source):
            return source
        return handle(rounded(cast(self, source, types.float32).data), types.bfloat16)

    def convert_float(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        to_zero = rounding == interpreter._ir.ROUNDING_MODE.RTZ
        if source == types.float32 and target == types.bfloat16 and not to_zero:
            return rounded(values)
        return convert(values, source, target, rounding)

    builder.cast_impl = cast_impl
    interpreter._convert_float = convert_float
