"""Triton's kernels on a simulated GPU with values: its interpreter runs them.

Triton's own interpreter (``TRITON_INTERPRET=1``, which :func:`oomph.simulate.load` sets
for such a card) runs kernels with NumPy, those that ``torch.compile`` writes too. As it
comes it copies all arguments to the host and back, and knows nothing of libdevice. Here
it works on the very bytes of the card, once the stream has come to the kernel, and what
libdevice computes PyTorch computes.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from oomph import _values
from oomph.base import imports

# Functions of libdevice that PyTorch has under another name.
_NAMES = {
    "cyl_bessel_i0": "i0",
    "cyl_bessel_i1": "i1",
    "fabs": "abs",
    "finite": "isfinite",
    "isfinited": "isfinite",
    "isinfd": "isinf",
    "isnand": "isnan",
    "j0": "bessel_j0",
    "j1": "bessel_j1",
    "nearbyint": "round",
    "normcdf": "ndtr",
    "normcdfinv": "ndtri",
    "powi": "pow",
    "rint": "round",
    "y0": "bessel_y0",
    "y1": "bessel_y1",
}


def _function(symbol: str, of_float: bool) -> Callable[..., torch.Tensor]:
    """What computes a function of libdevice, such as ``__nv_erff``."""
    name = symbol.removeprefix("__nv_")
    if of_float and name.endswith("f"):
        name = name[:-1]
    name = name.removeprefix("fast_")
    name = _NAMES.get(name, name)
    for module in (torch, torch.special):
        if hasattr(module, name):
            found: Callable[..., torch.Tensor] = getattr(module, name)
            return found
    raise NotImplementedError(
        f"{symbol} of libdevice cannot be computed on the simulated GPU with values: "
        "PyTorch has no such function. Leave it out, or simulate shapes alone."
    )


# ---- the arguments of a kernel


def _over(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the CPU over the bytes of one of the GPU.

    PyTorch's read-only views, which are no tensors, stay: their address is all that is
    asked of them, and that is the same.
    """
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
        return tensor
    storage = tensor.untyped_storage()
    made = torch.empty(0, dtype=tensor.dtype, device="cpu")  # whatever is the default
    if storage.nbytes() > 0:
        memory = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
        place = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
        made.set_(place, tensor.storage_offset(), tensor.size(), tensor.stride())
    return made


def _teach_interpreter(interpreter: Any) -> None:
    """Has kernels work on the card's bytes, and functions of libdevice computed."""
    from oomph.simulate import bfloat16  # imports NumPy, as the interpreter does

    bfloat16.teach(interpreter)
    # Triton's own helpers, which know its kinds of arguments.
    descriptor = interpreter.TensorDescriptor
    unwrap, rewrap = interpreter._unwrap_tensor, interpreter._rewrap_tensor

    def on_host(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return interpreter._tuple_create(argument, map(on_host, argument))
        if isinstance(argument, descriptor):
            return dataclasses.replace(argument, base=on_host(argument.base))
        if not hasattr(argument, "data_ptr"):
            return argument
        return rewrap(_over(unwrap(argument)), original_tensor=argument)

    def begin(
        self: Any, arguments: Sequence[Any], named: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        return [on_host(a) for a in arguments], {
            k: on_host(a) for k, a in named.items()
        }

    def end(self: Any, *_: Any) -> None:
        """Nothing is copied back: the kernel worked on the card's bytes."""

    execute = interpreter.GridExecutor.__call__
    one_at_a_time = threading.RLock()  # the interpreter has one grid

    def run(self: Any, *arguments: Any, **named: Any) -> None:
        with one_at_a_time:
            execute(self, *arguments, **named)

    def launch(self: Any, *arguments: Any, **named: Any) -> None:
        """Runs a kernel once its stream has come to it; if captured, when replayed."""
        if torch.cuda.is_current_stream_capturing():
            seen, known = begin(self, arguments, named)
            name = f"the Triton kernel {self.fn.__name__}"
            _values.defer(name, functools.partial(run, self, *seen, **known))
            return
        torch.cuda.current_stream().synchronize()
        run(self, *arguments, **named)

    def libdevice(
        self: Any, _: str, __: str, symbol: str, arguments: Any, kind: Any, ___: bool
    ) -> Any:
        inputs = [torch.tensor(a.data, device="cpu") for a in arguments]
        of_float = any(i.dtype == torch.float32 for i in inputs)
        found = _function(symbol, of_float)(*inputs).numpy()
        dtype = interpreter._get_np_dtype(kind.scalar)
        return interpreter.TensorHandle(found.astype(dtype), kind.scalar)

    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, *scope: Any) -> None:
        """Has numbers end loops whatever NumPy thinks of arrays of one number."""
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patch_tensor
    interpreter.GridExecutor.__call__ = launch
    interpreter.GridExecutor._init_args_hst = begin
    interpreter.GridExecutor._restore_args_dev = end
    interpreter.InterpreterBuilder.create_extern_elementwise = libdevice


def _teach_libdevice(module: ModuleType) -> None:
    """Has the interpreter's own builder serve functions that kernels call."""
    libdevice = importlib.import_module("triton.language.extra.cuda.libdevice")

    def interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            semantic = importlib.import_module("triton.language.semantic")
            interpreter = importlib.import_module("triton.runtime.interpreter")
            builder = interpreter.interpreter_builder
            kwargs["_semantic"] = semantic.TritonSemantic(builder)
            return function(*args, **kwargs)

        return call

    for name, function in vars(libdevice).copy().items():
        if getattr(function, "__module__", "") == libdevice.__name__:
            setattr(libdevice, name, interpreted(function))
    for name in vars(module).keys() & vars(libdevice).keys():
        if callable(getattr(module, name)):
            setattr(module, name, getattr(libdevice, name))


def _teach_autotuner(module: ModuleType) -> None:
    """Has the first configuration taken: an interpreter's times say nothing."""

    def measure(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        return [1.0, 1.0, 1.0]

    module.Autotuner._bench = measure


_TEACHERS: dict[str, Callable[[Any], None]] = {
    "triton.runtime.interpreter": _teach_interpreter,
    "triton.runtime.autotuner": _teach_autotuner,
    "triton.language.extra.libdevice": _teach_libdevice,
}


# ---- when they are imported


def install() -> None:
    """Teaches what of Triton is imported from now on."""
    for name, teach in _TEACHERS.items():
        imports.when_imported(name, teach)
