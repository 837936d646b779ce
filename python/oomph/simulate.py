"""The simulated GPU: a card of any size, for the unmodified CUDA build of PyTorch.

Three libraries stand in for NVIDIA's: the driver (``libcuda.so.1``), the runtime
(``libcudart.so.13``) and the mathematical libraries. Loaded before PyTorch, they win
over the real ones. PyTorch's own host code then runs as on a GPU and allocates what it
would allocate there; kernels compute nothing (*shapes*), so that memory is true and
values are not.

A process is simulated if ``OOMPH_SIMULATE`` names a card when Python starts (child
processes inherit it), or if :func:`load` is called before PyTorch is imported.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from oomph.sizes import format_size, parse_size

VARIABLE = "OOMPH_SIMULATE"
CUDA_MAJOR = 13

_LIBRARIES = ("libcuda.so.1", "libcudart.so.13", "liboomph_sim_math.so")
_loaded: str | None = None  # the card of this process


class SimulationError(RuntimeError):
    """The simulated GPU cannot be used here. Says what to do."""


@dataclass(frozen=True)
class Card:
    """A simulated card.

    Attributes:
        memory_bytes: Device memory of each device.
        devices: How many devices there are.
        host_bytes: Host memory that stands behind them; None: that of this machine.
    """

    memory_bytes: int
    devices: int = 1
    host_bytes: int | None = None


def parse_card(text: str) -> Card:
    """Reads what Python needs to know of a card; the libraries check the rest.

    Args:
        text: ``SIZE[,devices=N][,host=SIZE][,link=SPEED][,cc=X.Y]...``

    Raises:
        SimulationError: The text names no card.
    """
    size, *options = text.split(",")
    values = dict(option.partition("=")[::2] for option in options)
    try:
        return Card(
            memory_bytes=parse_size(size),
            devices=int(values.get("devices", "1")),
            host_bytes=parse_size(values["host"]) if "host" in values else None,
        )
    except ValueError as error:
        raise SimulationError(f"{text!r} is no card: {error}") from None


def card_in_use() -> Card | None:
    """The card of this process, or None if its GPU is not simulated."""
    return None if _loaded is None else parse_card(_loaded)


def _library(name: str) -> Path:
    path = Path(__file__).parent / "_sim" / name
    if not path.exists():
        raise SimulationError(
            f"{name} of the simulated GPU was not built; reinstall oomph with "
            "pip install --no-build-isolation"
        )
    return path


def _check_torch() -> None:
    """Raises unless the PyTorch installed is a CUDA build that fits."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SimulationError("PyTorch is not installed: pip install torch")
    text = (Path(spec.origin).parent / "version.py").read_text()
    version = re.search(r"__version__ = '([^']*)'", text)
    cuda = re.search(r"^cuda\b[^=]*= '(\d+)\.", text, re.MULTILINE)
    name = f"PyTorch {version.group(1) if version else ''}".strip()
    if cuda is None:
        raise SimulationError(
            f"{name} is built for the CPU alone; the simulated GPU runs the CUDA "
            "build: "
            "pip install --force-reinstall torch"
        )
    if int(cuda.group(1)) != CUDA_MAJOR:
        raise SimulationError(
            f"{name} is built for CUDA {cuda.group(1)}; the simulated GPU is one of "
            f"CUDA {CUDA_MAJOR}: install a PyTorch built for it "
            "(pip install 'torch>=2.11')"
        )


def check(card: str) -> None:
    """Raises SimulationError unless the card is understood and PyTorch fits."""
    parse_card(card)
    _check_torch()


def load(card: str) -> None:
    """Makes this process see a simulated GPU. Call it before importing PyTorch.

    Child processes see the same card.

    Args:
        card: The card, such as ``12GiB,devices=2,host=128GiB,link=25GB/s,cc=9.0``.

    Raises:
        SimulationError: PyTorch is imported already, is no CUDA build, or the card is
            not understood.

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
    if "torch" in sys.modules:
        raise SimulationError(
            "PyTorch is imported already: load the simulated GPU before it, or run "
            f"with oomph run --simulate, or set {VARIABLE}"
        )
    check(card)
    driver = ctypes.CDLL(str(_library(_LIBRARIES[0])), ctypes.RTLD_GLOBAL)
    driver.oomph_sim_configure.argtypes = [ctypes.c_char_p]
    driver.oomph_sim_error.restype = ctypes.c_char_p
    if driver.oomph_sim_configure(card.encode()) != 0:
        raise SimulationError(driver.oomph_sim_error().decode())
    for name in _LIBRARIES[1:]:
        ctypes.CDLL(str(_library(name)), ctypes.RTLD_GLOBAL)
    os.environ[VARIABLE] = card
    _loaded = card


def prepare_torch() -> None:
    """Names the operators that cannot run, once PyTorch is imported."""


def banner(card: str) -> str:
    """What a user must know of the numbers of a simulated GPU."""
    parsed = parse_card(card)
    count = "" if parsed.devices == 1 else f"{parsed.devices} x "
    return (
        f"the GPU is simulated ({count}{format_size(parsed.memory_bytes)}): kernels "
        "compute nothing, so losses and other values mean nothing, and times are not a "
        "GPU's; memory is what PyTorch allocates on a GPU"
    )
