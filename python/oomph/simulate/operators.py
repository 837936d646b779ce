"""Operators of PyTorch that the simulated GPU treats in its own way.

Kernels compute nothing there, and some libraries are not simulated. So there are three
kinds of operators that PyTorch's own code cannot carry out by itself. Each is wrapped
in a kernel that calls PyTorch's:

* Operators of a library that is not simulated (cuFFT, cuSOLVER, cuSPARSE, cuSPARSELt,
  MAGMA) give results in sizes alone (:mod:`oomph.simulate.sized`), or fail; the error
  names the operator and the library.
* Operators whose result is as large as values say (``nonzero``, and with it boolean
  masks; ``unique``) are given a count: one half of the elements, rounded up, or another
  share (``matches=`` of the card).
* Operators that check or compare whole tensors find that the check holds. Others
  that cannot do without values fail, with an error that says so.

All others run PyTorch's own kernels and nothing else.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from oomph.simulate.driver import SimulationError

Kernel = Callable[..., Any]
Answer = Callable[..., int]

# Operators that need a library for some or all of their inputs, with all overloads, by
# the key of PyTorch's dispatcher.
NEED_A_LIBRARY = {
    "CUDA": """
        _fft_c2c _fft_c2r _fft_r2c
        cholesky cholesky_inverse _cholesky_solve_helper geqrf ormqr triangular_solve
        linalg_cholesky_ex _linalg_det _linalg_eigh _linalg_eigvals
        linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve
        linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_qr
        _linalg_slogdet _linalg_solve_ex linalg_solve_triangular _linalg_svd
        _cslt_compress _cslt_sparse_mm _cslt_sparse_mm_search
    """,
    "SparseCUDA": "addmm addmm_ bmm hspmm mm mv sspaddmm _sparse_sparse_matmul",
    "SparseCsrCUDA": """
        add add_ addmm addmv baddbmm bmm mm sparse_sampled_addmm _spsolve
        triangular_solve
    """,
}

# Operators that compute on the host, of values that are not there.
NEED_MAGMA = ("linalg_eig", "linalg_eig.out")

# Operators that fail for some inputs when they read zeros.
NEED_VALUES = ("_ctc_loss",)

_LIBRARY_NAMES = {
    "cufft": "cuFFT",
    "cusolver": "cuSOLVER",
    "cusparseLt": "cuSPARSELt",
    "cusparse": "cuSPARSE",
}

_library: torch.library.Library | None = None  # the kernels live as long as it does
_driver: ctypes.CDLL | None = None  # that they ask


# ---- what operators are given


def _elements(tensor: torch.Tensor, *_: Any, **__: Any) -> int:
    return tensor.numel()


def _along_dimension(tensor: torch.Tensor, dim: int, *_: Any, **__: Any) -> int:
    return tensor.size(dim)


def _along_either(
    tensor: torch.Tensor,
    inverse: bool = False,
    counts: bool = False,
    dim: int | None = None,
) -> int:
    return tensor.numel() if dim is None else tensor.size(dim)


def _one_for_each(repeats: torch.Tensor, **_: Any) -> int:
    return repeats.numel()


class _Assumed(threading.local):
    """Whether what is compared is found to be equal."""

    is_equal = True


_assumed = _Assumed()


def _holds(*_: Any, **__: Any) -> int:
    return int(_assumed.is_equal)


# Operators of the key CUDA that find some of so many elements: how many, nobody knows.
FIND: dict[str, Answer] = {
    "nonzero": _elements,
    "nonzero.out": _elements,
    "_unique": _elements,
    "_unique2": _elements,
    "unique_consecutive": _along_either,
    "unique_dim": _along_dimension,
    "unique_dim_consecutive": _along_dimension,
}

# What others of them read of the device, as oomph_sim_fake_readback() has it.
ANSWERS: dict[str, Answer] = {
    "repeat_interleave.Tensor": _one_for_each,
    "allclose": _holds,
    "equal": _holds,
    "mode": _holds,
    "normal.Tensor_Tensor": _holds,
    "normal.Tensor_Tensor_out": _holds,
    "normal.float_Tensor": _holds,
    "normal.float_Tensor_out": _holds,
    "segment_reduce": _holds,
}


# ---- kernels


def _refusal(operator: str, library: str) -> NotImplementedError:
    return NotImplementedError(
        f"aten::{operator} cannot run on the simulated GPU: it needs {library}, which "
        "is not simulated. Leave it out or run it on the CPU to simulate the rest."
    )


def _library_of(function: str) -> str:
    names = _LIBRARY_NAMES.items()
    library = next((n for prefix, n in names if function.startswith(prefix)), None)
    return function if library is None else f"{library} ({function})"


def _named(operator: str, native: Any, driver: ctypes.CDLL) -> Kernel:
    """A kernel that gives results in sizes alone when a library refuses.

    It names the operator where it is not known how large they are.
    """

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        refused = driver.oomph_sim_unsupported_count()
        try:
            return native.call_boxed(keys, *args, **kwargs)
        except RuntimeError:
            if driver.oomph_sim_unsupported_count() == refused:
                raise
            function = driver.oomph_sim_unsupported(0).decode()
        return _sized(operator, _library_of(function), args, kwargs)

    return kernel


def _blamed(operator: str, native: Any) -> Kernel:
    """A kernel that says, when it fails, that there were no values."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return native.call_boxed(keys, *args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise NotImplementedError(
                f"aten::{operator} cannot run on the simulated GPU: values that it "
                f"reads from there, such as lengths, are all 0 ({error}). Give it such "
                "values on the CPU."
            ) from None

    return kernel


def _matches(elements: Answer, driver: ctypes.CDLL) -> Answer:
    """How many of so many elements are found: the driver says."""

    def answer(*args: Any, **kwargs: Any) -> int:
        return int(driver.oomph_sim_matches(elements(*args, **kwargs)))

    return answer


def _answered(native: Any, answer: Answer, driver: ctypes.CDLL) -> Kernel:
    """A kernel whose reads of the device give an answer."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        before = driver.oomph_sim_fake_readback(answer(*args, **kwargs))
        try:
            return native.call_boxed(keys, *args, **kwargs)
        finally:
            driver.oomph_sim_fake_readback(before)

    return kernel


def _lacking(operator: str, library: str) -> Kernel:
    """The same of one whose library PyTorch was built without."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return _sized(operator, library, args, kwargs)

    return kernel


def _sized(
    operator: str, library: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Results in sizes alone.

    Raises:
        NotImplementedError: It is not known how large they are.
    """
    from oomph.simulate import sized  # few programs need it

    try:
        return sized.run(operator, args, kwargs)
    except sized.Unknown:
        raise _refusal(operator, library) from None


def _need_a_library() -> Iterator[tuple[str, str]]:
    """Keys and operators, with overloads, as far as this PyTorch has them."""
    for key, text in NEED_A_LIBRARY.items():
        wanted = {f"aten::{name}" for name in text.split()}
        for full in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            if full.partition(".")[0] in wanted:
                yield key, full.removeprefix("aten::")


def _kernels(driver: ctypes.CDLL) -> Iterator[tuple[str, str, Kernel]]:
    """Every operator to wrap: its name and key, and its new kernel."""
    for key, name in list(_need_a_library()):
        native = torch.library.get_kernel(f"aten::{name}", key)
        yield name, key, _named(name, native, driver)
    for name, elements in FIND.items():
        native = torch.library.get_kernel(f"aten::{name}", "CUDA")
        yield name, "CUDA", _answered(native, _matches(elements, driver), driver)
    for name, answer in ANSWERS.items():
        native = torch.library.get_kernel(f"aten::{name}", "CUDA")
        yield name, "CUDA", _answered(native, answer, driver)
    for name in NEED_VALUES:
        native = torch.library.get_kernel(f"aten::{name}", "CUDA")
        yield name, "CUDA", _blamed(name, native)
    for name in NEED_MAGMA:
        yield name, "CUDA", _lacking(name, "MAGMA")


def install(driver: ctypes.CDLL) -> None:
    """Wraps the operators of this process, and ends the checks of distributions.

    Args:
        driver: The simulated ``libcuda.so.1``.
    """
    global _library, _driver
    if _library is not None:
        return
    _driver = driver
    driver.oomph_sim_unsupported_count.restype = ctypes.c_uint64
    driver.oomph_sim_unsupported.restype = ctypes.c_char_p
    driver.oomph_sim_unsupported.argtypes = [ctypes.c_size_t]
    driver.oomph_sim_fake_readback.restype = ctypes.c_uint64
    driver.oomph_sim_fake_readback.argtypes = [ctypes.c_uint64]
    driver.oomph_sim_matches.restype = ctypes.c_uint64
    driver.oomph_sim_matches.argtypes = [ctypes.c_uint64]
    driver.oomph_sim_guess_count.restype = ctypes.c_uint64
    try:
        __file__.encode()  # as PyTorch does with the path of whoever registers
    except UnicodeEncodeError:
        raise SimulationError(
            f"Python takes file names for {sys.getfilesystemencoding()} here, and that "
            f"of {__file__!a} is not: set PYTHONUTF8=1 in the environment"
        ) from None
    _library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that kernels are replaced
        for name, key, kernel in _kernels(driver):
            _library.impl(  # type: ignore[no-untyped-call]
                name, kernel, key, with_keyset=True, allow_override=True
            )
    _keep_to_the_end(_library)
    torch.distributions.Distribution.set_default_validate_args(False)
    torch.istft = _comparing_with_a_fault(torch.istft)  # windows that do not overlap


def _keep_to_the_end(library: Any) -> None:
    """Its kernels outlast what runs at exit, such as a log that prints a tensor."""
    for finalizer, info in [*weakref.finalize._registry.items()]:  # type: ignore[attr-defined]
        if info.weakref() is library:
            finalizer.atexit = False


def _comparing_with_a_fault(native: Any) -> Callable[..., Any]:
    """A function that fails if what it compares is equal."""

    @functools.wraps(native)
    def function(*args: Any, **kwargs: Any) -> Any:
        _assumed.is_equal = False
        try:
            return native(*args, **kwargs)
        finally:
            _assumed.is_equal = True

    return function


def guess_count() -> int:
    """How often an operator was given a guess of how many elements it finds.

    0 if the GPU is not simulated, or computes values.
    """
    return 0 if _driver is None else int(_driver.oomph_sim_guess_count())


# ---- what is none of PyTorch's operators


def install_sleep(driver: ctypes.CDLL) -> None:
    """Has ``torch.cuda._sleep`` keep its stream busy, by the card's clock.

    Args:
        driver: The simulated ``libcuda.so.1``.
    """
    driver.oomph_sim_sleep.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    driver.oomph_sim_dry.argtypes = [ctypes.c_int]
    native = torch._C._cuda_sleep

    def sleep(cycles: int) -> None:
        driver.oomph_sim_dry(1)  # PyTorch's kernel is launched as ever, into nothing
        try:
            native(cycles)
        finally:
            driver.oomph_sim_dry(-1)
        device = torch.cuda.current_device()
        clock_khz = torch.cuda.get_device_properties(device).clock_rate
        stream = torch.cuda.current_stream().cuda_stream
        error = driver.oomph_sim_sleep(stream, max(0, cycles) * 1_000_000 // clock_khz)
        if error:
            raise RuntimeError(
                f"torch.cuda._sleep failed on the simulated GPU: its stream takes no "
                f"more work (error {error})"
            )

    torch._C._cuda_sleep = sleep


def switch_fusers_off() -> None:
    """Has TorchScript run operators one by one: its own kernels have no values."""
    torch._C._jit_set_texpr_fuser_enabled(False)
    torch._C._jit_override_can_fuse_on_gpu(False)
