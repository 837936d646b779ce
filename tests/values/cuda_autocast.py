"""Autocast as on a GPU, but on the CPU: a reference that needs no GPU.

PyTorch's autocast casts other operators on the CPU than on a GPU. Here the lists for a
GPU are read from the header of the installed PyTorch, and what they say is put in the
place of the CPU's autocast, for the whole process. Nothing of oomph is in it.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
KEY = "AutocastCPU"

Kernel = Callable[..., Any]


# ---- what is cast


def listed(macro: str) -> list[str]:
    """The operators of one of the header's lists, such as ``softmax.int``."""
    text = HEADER.read_text()
    body = re.search(rf"#define {macro}\(_\)(.*?[^\\])\n", text, re.DOTALL)
    assert body is not None, f"{HEADER} has no {macro}"
    entries = re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])
    assert entries
    return [f"{name}.{overload}" if overload else name for name, overload in entries]


def is_eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_cpu
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


class Casts:
    """Casts of parameters, made once in each region of autocast, as PyTorch keeps them.

    All uses of one then share it, so that their gradients are added in its type.
    """

    def __init__(self) -> None:
        self.kept: dict[int, torch.Tensor] = {}
        self.keeps = True

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        if not is_eligible(value) or value.dtype == dtype:
            return value
        is_kept = (
            self.keeps
            and dtype == torch.get_autocast_dtype("cpu")
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
        )
        if not is_kept:
            return value.to(dtype)
        if id(value) not in self.kept:
            self.kept[id(value)] = value.to(dtype)
        return self.kept[id(value)]


casts = Casts()


def cast_all(values: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map(lambda value: casts.cast(value, dtype), values)


# ---- kernels


def without_autocast() -> contextlib.AbstractContextManager[Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)


def in_type(op: Any, dtype: Callable[[Any], torch.dtype]) -> Kernel:
    """Casts all arguments to a type that may depend on them."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            args, kwargs = cast_all((args, kwargs), dtype((args, kwargs)))
            return op(*args, **kwargs)

    return kernel


def with_result_in_float(op: Any) -> Kernel:
    """Asks for a result in float32 unless the caller wants another type."""
    names = [argument.name for argument in op._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        with without_autocast():
            if is_eligible(args[0]) and given.get("dtype") is None:
                given["dtype"] = torch.float32
            return op(**given)

    return kernel


def refused(op: Any) -> Kernel:
    def kernel(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{op} is not written down in {__name__}")

    return kernel


def lower(_: Any) -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def full(_: Any) -> torch.dtype:
    return torch.float32


def widest(values: Any) -> torch.dtype:
    types = {v.dtype for v in pytree.tree_leaves(values) if is_eligible(v)}
    return torch.float32 if torch.float32 in types else lower(values)


def overload(name: str) -> Any:
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), which or "default")


def kernels() -> dict[str, Kernel]:
    """What a GPU's autocast does with each operator that it knows."""
    found: dict[str, Kernel] = {}
    for name in listed("AT_FORALL_LOWER_PRECISION_FP"):
        found[name] = in_type(overload(name), lower)
    for name in listed("AT_FORALL_FP32"):
        found[name] = in_type(overload(name), full)
    for name in listed("AT_FORALL_PROMOTE"):
        found[name] = in_type(overload(name), widest)
    for name in listed("AT_FORALL_FP32_SET_OPT_DTYPE"):
        if "imname" not in name:  # Python cannot give dimensions names here
            found[name] = with_result_in_float(overload(name))
    others = ["norm.Scalar", "norm.ScalarOpt_dim", "binary_cross_entropy"]
    if hasattr(torch.ops.aten, "linalg_matrix_sqrth"):  # from 2.15 on
        others.append("linalg_matrix_sqrth")
    found.update({name: refused(name) for name in others})
    return found


def install() -> torch.library.Library:
    """Puts these in the place of the CPU's autocast, until the result is destroyed."""
    library = torch.library.Library("aten", "IMPL")
    chosen = kernels()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kernels are replaced: meant
        for full_name in torch._C._dispatch_get_all_op_names():
            namespace, _, name = full_name.partition("::")
            if namespace == "aten" and (name in chosen or is_cast_on(KEY, full_name)):
                kernel = chosen.get(name, torch.library.fallthrough_kernel)
                library.impl(name, kernel, KEY, allow_override=True)
    return library


def is_cast_on(key: str, full_name: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(full_name, key)


@contextlib.contextmanager
def policy_of_gpu(keeps_casts: bool = True) -> Iterator[None]:
    """Within it, ``torch.autocast("cpu")`` casts as ``torch.autocast("cuda")`` does."""
    library = install()
    casts.keeps = keeps_casts
    forget = torch.clear_autocast_cache  # at the end of each region

    def forget_ours() -> None:
        casts.kept.clear()
        forget()

    with mock.patch.object(torch, "clear_autocast_cache", forget_ours):
        try:
            yield
        finally:
            library._destroy()
