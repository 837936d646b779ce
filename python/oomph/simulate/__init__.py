"""The simulated GPU: a card of any size, for the unmodified CUDA build of PyTorch.

Four libraries stand in for NVIDIA's: the driver (``libcuda.so.1``), the runtime of the
CUDA that PyTorch is built for (``libcudart.so.12`` or ``.13``), the mathematical
libraries and the management library (``libnvidia-ml.so.1``). Loaded before PyTorch,
they win over the real ones. PyTorch's own host code then runs as on a GPU and allocates
what it would allocate there; kernels compute nothing (*shapes*), so that memory is true
and values are not. On a well-known card (``gpu=``) operators take the time that its
figures allow, on a virtual clock.
``CUDA_VISIBLE_DEVICES`` counts as on a GPU.

A process is simulated if ``OOMPH_SIMULATE`` names a card when Python starts (child
processes inherit it), or if :func:`load` is called before PyTorch is imported.

What is invented where a program depends on values:

* What is read from the GPU is 0: ``.item()``, ``.cpu()``, a loss, a mask. A loop that
  waits for a value may not end, a gradient scaler never skips a step.
* ``nonzero``, boolean masks and ``unique`` find one half of the elements, rounded up,
  or another share (``matches=``);
  ``repeat_interleave`` repeats each element once.
* ``allclose``, ``equal`` and what operators and distributions check themselves holds.
* Other sizes that are counted on the GPU are those that PyTorch makes of zeros.

Operators of cuFFT, cuSOLVER, cuSPARSE and MAGMA, which are not simulated, give results
of the right sizes; where these are not known, a ``NotImplementedError`` names them.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from oomph import _extensions
from oomph.simulate.driver import (
    DRIVER,
    FOLDER,
    check_memory,
    check_none_loaded,
    error_of,
    open_library,
)
from oomph.simulate.driver import Card as Card
from oomph.simulate.driver import SimulationError as SimulationError
from oomph.simulate.driver import banner as banner
from oomph.simulate.driver import parse_card as parse_card

VARIABLE = "OOMPH_SIMULATE"

_RUNTIME = "libcudart.so."  # and the major version of CUDA
_OTHERS = ("liboomph_sim_math.so", "liboomph_sim_nccl.so", "libnvidia-ml.so.1")
_MISUSES_KEPT = 16  # by the driver
_loaded: str | None = None  # the card of this process
_preloaded = False
_kept: list[object] = []  # what the driver may call


@dataclass(frozen=True)
class Usage:
    """What a simulated device has done since its process started.

    Work counts in full when it starts, so synchronize before you ask. Times are
    nanoseconds of the virtual clock, which docs/simulated_card.md describes.

    Attributes:
        now_ns: The virtual time.
        compute_busy_ns: Time of kernels, including their waits for the link. 0 without
            ``gpu=``, as kernels do not take turns then.
        h2d_busy_ns: Time in which the link to the device was busy.
        d2h_busy_ns: Time in which the link from the device was busy.
        h2d_bytes: Bytes moved to the device, by copies and by kernels that read host
            memory.
        d2h_bytes: Bytes moved from the device, likewise.
        operators: Number of PyTorch's operators that took time; 0 without ``gpu=``.
        flops: Floating-point operations of these.
        device_bytes: Bytes of device memory that these, and copies within the device,
            read and wrote.
    """

    now_ns: int
    compute_busy_ns: int
    h2d_busy_ns: int
    d2h_busy_ns: int
    h2d_bytes: int
    d2h_bytes: int
    operators: int
    flops: float
    device_bytes: float


class _UsageOfDriver(ctypes.Structure):
    """``oomph_sim_usage_t`` of csrc/sim/sim.h; the order is that of Usage."""

    _fields_ = tuple(
        (field.name, ctypes.c_double if field.type == "float" else ctypes.c_uint64)
        for field in fields(Usage)
    )


def _runtimes() -> list[str]:
    """The major versions of CUDA whose runtime is simulated here."""
    found = (path.name for path in FOLDER.glob(f"{_RUNTIME}*"))
    return sorted(name.removeprefix(_RUNTIME) for name in found)


def _open_others(major: str | None) -> None:
    """Loads what stands on the driver, with the runtime of a major version of CUDA.

    None, as PyTorch is not found yet: those of all versions. A library finds its own by
    name, which is therefore loaded local: PyTorch makes the one that it has global.
    """
    for version in _runtimes() if major is None else [major]:
        open_library(f"{_RUNTIME}{version}", ctypes.RTLD_LOCAL)
    for name in _OTHERS:
        open_library(name, ctypes.RTLD_GLOBAL)


def card_in_use() -> Card | None:
    """Gives the simulated card of this process.

    Returns:
        The card; None if the GPU of this process is not simulated.

    Example:
        >>> oomph.simulate.card_in_use().memory_bytes >> 30
        12
    """
    return None if _loaded is None else parse_card(_loaded)


def misuses() -> list[str]:
    """Lists what the simulated driver saw that no correct program does.

    Examples are work of two streams on the same memory without an event between them,
    and an access to memory that is not mapped.

    Returns:
        The last 16, the newest first; each names the call and says what was wrong.
        Empty if the GPU is not simulated.

    Example:
        >>> oomph.simulate.misuses()
        []
    """
    if _loaded is None:
        return []
    driver = open_library(DRIVER, ctypes.RTLD_LOCAL)
    driver.oomph_sim_misuse.restype = ctypes.c_char_p
    driver.oomph_sim_misuse.argtypes = (ctypes.c_size_t,)
    found = (driver.oomph_sim_misuse(ago) for ago in range(_MISUSES_KEPT))
    return [text.decode() for text in found if text is not None]


def usage(device: int = 0) -> Usage:
    """Gives what a simulated device of this process has done so far.

    Args:
        device: Index of the device.

    Returns:
        Counters since the process started; subtract two to measure a part.

    Raises:
        SimulationError: The GPU of this process is not simulated, or there is no such
            device.

    Example:
        >>> before = oomph.simulate.usage()
        >>> copy = torch.ones(1 << 20).cuda()  # 4 MiB
        >>> torch.cuda.synchronize()
        >>> after = oomph.simulate.usage()
        >>> after.h2d_bytes - before.h2d_bytes
        4194304
        >>> ms = (after.now_ns - before.now_ns) / 1e6
    """
    if _loaded is None:
        raise SimulationError("the GPU of this process is not simulated")
    found = _UsageOfDriver()
    driver = open_library(DRIVER, ctypes.RTLD_LOCAL)
    if driver.oomph_sim_usage(device, ctypes.byref(found)) != 0:
        raise SimulationError(f"the simulated card has no device {device}")
    return Usage(*(getattr(found, field.name) for field in fields(Usage)))


def _check_build(version: str, cuda: str | None) -> str:
    """The major version of a PyTorch's CUDA; raises unless one of it is simulated."""
    if cuda is None:
        raise SimulationError(
            f"PyTorch {version} is built for the CPU alone; the simulated GPU runs the "
            "CUDA build: pip install --force-reinstall torch"
        )
    major = cuda.partition(".")[0]
    if major not in _runtimes():
        raise SimulationError(
            f"PyTorch {version} is built for CUDA {cuda}; the simulated GPU is one for "
            f"CUDA {' and '.join(_runtimes())}: install oomph's wheel, which serves "
            "CUDA 12 and 13, or build oomph beside this PyTorch "
            "(pip install --no-build-isolation)"
        )
    return major


def torch_build() -> tuple[str, str | None] | None:
    """The version of the PyTorch to be found, and its CUDA's, without importing it.

    None: there is no PyTorch; in place of CUDA's: it is built for the CPU alone.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text()
    version = re.search(r"^__version__ = '([^']*)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=]*= '(\d[^']*)'", text, re.MULTILINE)
    return version.group(1) if version else "", cuda.group(1) if cuda else None


def _find_torch() -> str | None:
    """The major version of CUDA of the PyTorch to be found.

    None: there is no PyTorch. Raises if it does not fit.
    """
    found = torch_build()
    return None if found is None else _check_build(*found)


def check(card: str) -> None:
    """Raises SimulationError unless the card is understood and PyTorch fits."""
    parse_card(card)
    if _find_torch() is None:
        raise SimulationError("PyTorch is not installed: pip install torch")


def preload() -> None:
    """Loads the libraries before PyTorch is imported, and describes no card yet.

    Forks of this process may each :func:`load` a card of their own.

    Raises:
        SimulationError: PyTorch does not fit, or a library is missing.
    """
    global _preloaded
    major = _find_torch()
    open_library(DRIVER, ctypes.RTLD_GLOBAL)
    _open_others(major)
    _preloaded = True


def load(card: str) -> None:
    """Gives this process a simulated GPU. Call it before importing PyTorch.

    Child processes get the same card. Triton (``torch.compile``) gets the same driver.

    Args:
        card: The card, such as ``12GiB,devices=2,host=128GiB,link=25GB/s,cc=9.0`` or
            ``rtx4090,host=64GiB``.

    Raises:
        SimulationError: PyTorch is imported already or is not a CUDA build that fits,
            or the description of the card is wrong.

    Example:
        >>> import oomph.simulate
        >>> oomph.simulate.load("12GiB")
        >>> import torch
        >>> torch.cuda.get_device_properties(0).total_memory == 12 << 30
        True
    """
    global _loaded
    if _loaded == card:
        return
    if _loaded is not None:
        raise SimulationError(f"a card of {_loaded} is simulated already")
    if "torch" in sys.modules and not _preloaded:
        raise SimulationError(
            "PyTorch is imported already: load the simulated GPU before it, or run "
            f"with oomph run --simulate, or set {VARIABLE}"
        )
    parsed = parse_card(card)
    major = _find_torch()
    if not _preloaded:
        check_none_loaded(major or r"\d+")
    driver = open_library(DRIVER, ctypes.RTLD_GLOBAL)
    if driver.oomph_sim_configure(os.fsencode(card)) != 0:
        raise error_of(driver)
    check_memory(driver)
    _open_others(major)
    os.environ[VARIABLE] = card
    os.environ.setdefault("TRITON_LIBCUDA_PATH", str(FOLDER))
    if parsed.has_values:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # see simulate.triton
    _loaded = card


def change(card: str) -> None:
    """Gives this process another card than it has, before a device is first used.

    Args:
        card: It differs in memory and rates alone: of the rest things may be known.

    Raises:
        SimulationError: The description is wrong, or a device is in use.
    """
    global _loaded
    driver = open_library(DRIVER, ctypes.RTLD_GLOBAL)
    if driver.oomph_sim_configure(os.fsencode(card)) != 0:
        raise error_of(driver)
    os.environ[VARIABLE] = _loaded = card


def before_use(function: Callable[[], None]) -> None:
    """Has a function called once, before a device is first used.

    PyTorch may count devices before that. There the process may fork and
    :func:`change` its card.

    Args:
        function: Is called by the thread that uses a device. It must not raise.
    """
    import torch

    driver = open_library(DRIVER, ctypes.RTLD_GLOBAL)
    begin = torch._C._cuda_init

    def init() -> None:
        torch._C._cuda_init = begin
        driver.oomph_sim_begin_use()  # the allocator starts before PyTorch's calls
        begin()

    torch._C._cuda_init = init
    call = ctypes.CFUNCTYPE(None)(function)
    _kept.append(call)
    driver.oomph_sim_before_use(call)


def was_asked_at_start() -> bool:
    """Whether the environment named a card when this process began, as far as known."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:  # a container without /proc
        return True
    return any(entry.startswith(f"{VARIABLE}=".encode()) for entry in entries)


def prepare_torch() -> None:
    """Prepares PyTorch, which has just been imported, for the simulated GPU.

    Raises:
        SimulationError: This PyTorch does not fit.
    """
    import torch

    from oomph.simulate import operators, searches, users

    _check_build(torch.__version__, torch.version.cuda)
    card = card_in_use()
    driver = open_library(DRIVER, ctypes.RTLD_LOCAL)
    if card is not None and card.has_values:
        from oomph.simulate import triton

        _install(torch.__version__, driver, "install", "compute", "dry")
        operators.switch_fusers_off()
        triton.install()
    else:
        operators.install(driver)
        searches.install()
    operators.install_sleep(driver)
    users.note(before_use)
    if card is not None and not card.has_values:
        small = ("compute", "peek_view", "look_view", "poke", "poke_zeros")
        _install(torch.__version__, driver, "know_small", *small)
    if card is not None and (card.has_rates or not card.has_values):
        _install(torch.__version__, driver, "install_costs", "cost", "operator")
    if card is not None and card.has_rates and not card.has_values:
        from oomph.simulate import compiled

        compiled.install(driver)


def _install(version: str, driver: ctypes.CDLL, method: str, *calls: str) -> None:
    """Wraps operators, by the extension that was built for this PyTorch.

    Args:
        version: This PyTorch's.
        driver: The simulated driver.
        method: What of the extension wraps them.
        calls: What of the driver it needs.
    """
    try:
        values = _extensions.load("_values", version)
    except RuntimeError as error:
        raise SimulationError(str(error)) from None
    functions = [getattr(driver, f"oomph_sim_{call}") for call in calls]
    addresses = [ctypes.c_void_p.from_buffer(function).value for function in functions]
    getattr(values, method)(*addresses)
