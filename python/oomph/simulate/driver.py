"""The simulated driver, as Python opens it; its errors, and cards as it reads them."""

from __future__ import annotations

import ctypes
import os
import re
import resource
from _ctypes import dlclose
from pathlib import Path
from typing import NamedTuple

from oomph.base.sizes import format_size

DRIVER = "libcuda.so.1"
FOLDER = Path(__file__).parent.parent / "_sim"  # of this library and the others
_NO_LIMIT = 2**64 - 1
_PYTORCH_ADDRESSES = 8 << 30  # about what a process with PyTorch maps for itself


class SimulationError(RuntimeError):
    """The simulated GPU cannot be used here; the text says what to do.

    Example:
        >>> try:
        ...     oomph.simulate.parse_card("12 apples")
        ... except oomph.simulate.SimulationError as error:
        ...     print(error)
        simulated card: ...
    """


class Card(NamedTuple):
    """A simulated card, as :func:`parse_card` and :func:`card_in_use` describe it.

    Attributes:
        memory_bytes: Bytes of device memory of each device.
        devices: Number of devices.
        host_bytes: Bytes of host memory that they can use; None: what this machine has.
        has_values: Whether operators compute values (``memory=values``).
        has_rates: Whether operators take the time of a well-known card (``gpu=``).
    """

    memory_bytes: int
    devices: int = 1
    host_bytes: int | None = None
    has_values: bool = False
    has_rates: bool = False


class _CardOfDriver(ctypes.Structure):
    """``oomph_sim_card_t`` of csrc/sim/sim.h."""

    _fields_ = (
        ("memory_bytes", ctypes.c_uint64),
        ("host_bytes", ctypes.c_uint64),
        ("device_count", ctypes.c_int),
        ("has_values", ctypes.c_int),
        ("has_rates", ctypes.c_int),
    )


def open_library(name: str, mode: int) -> ctypes.CDLL:
    """Loads one of the libraries into this process.

    Raises:
        SimulationError: It is missing, or is not for this machine.
    """
    try:
        return ctypes.CDLL(str(FOLDER / name), mode)
    except OSError as error:
        raise SimulationError(
            f"{name} of the simulated GPU cannot be loaded ({error}); reinstall oomph "
            "with pip install --no-build-isolation"
        ) from None


def check_none_loaded(major: str) -> None:
    """Raises SimulationError if NVIDIA's libraries were loaded before: they would win.

    Args:
        major: The version of the runtime that PyTorch needs, as a pattern.
    """
    try:
        maps = Path("/proc/self/maps").read_text(errors="surrogateescape")
    except OSError:
        return
    name = rf"/[^\n]*/lib(?:cuda\.so|cudart\.so\.{major})\b[^/\n]*"
    paths = re.findall(name, maps)
    if paths and not any(os.path.dirname(p) == os.path.realpath(FOLDER) for p in paths):
        raise SimulationError(
            f"{paths[0]} is loaded already, by LD_PRELOAD or by a package that was "
            "imported first, and PyTorch would call it in place of the simulated "
            "one: take it out, or have oomph come before it"
        )


def check_memory(driver: ctypes.CDLL) -> None:
    """Raises SimulationError if the card cannot have memory where it is real."""
    refusal = driver.oomph_sim_try_memory()
    if refusal != 0:
        raise SimulationError(
            f"the system refuses a file in memory ({os.strerror(refusal)}), which the "
            "values of a simulated card lie in: a limit of the size of files "
            "(ulimit -f) or a container's security profile forbids memfd_create"
        )


def error_of(driver: ctypes.CDLL) -> SimulationError:
    """What the driver says of the call that has just failed."""
    driver.oomph_sim_error.restype = ctypes.c_char_p
    return SimulationError(driver.oomph_sim_error().decode())


def parse_card(text: str) -> Card:
    """Reads the description of a card, as the simulated driver reads it.

    Args:
        text: ``SIZE|GPU[,devices=N][,host=SIZE][,link=SPEED][,cc=X.Y]...``;
            docs/simulated_card.md has the keys.

    Returns:
        The card.

    Raises:
        SimulationError: The text does not describe a card; the error says what is
            allowed.

    Example:
        >>> oomph.simulate.parse_card("12GiB,devices=2").devices
        2
    """
    if not text.isprintable():  # else it would be shown as something else
        raise SimulationError(f"{text!a} is no card: what has a backslash is not seen")
    driver = open_library(DRIVER, ctypes.RTLD_LOCAL)
    found = _CardOfDriver()
    try:
        if driver.oomph_sim_describe(os.fsencode(text), ctypes.byref(found)) != 0:
            raise error_of(driver)
    finally:
        # Left open it would be this process's CUDA driver, simulated or not.
        dlclose(driver._handle)
    return Card(
        memory_bytes=found.memory_bytes,
        devices=found.device_count,
        host_bytes=None if found.host_bytes == _NO_LIMIT else found.host_bytes,
        has_values=bool(found.has_values),
        has_rates=bool(found.has_rates),
    )


def banner(card: str) -> str:
    """What a user must know of the numbers of a simulated GPU."""
    parsed = parse_card(card)
    count = "" if parsed.devices == 1 else f"{parsed.devices} x "
    times = (
        "times on the virtual clock are modelled from the card's figures, not measured"
        if parsed.has_rates
        else "times are not a GPU's"
    )
    text = (
        f"values are computed on the CPU, {times}"
        if parsed.has_values
        else "kernels compute nothing, so losses and other values mean nothing, and "
        f"{times}; memory is what PyTorch allocates on a GPU"
    )
    size = f"{count}{format_size(parsed.memory_bytes)}"
    return f"the GPU is simulated ({size}): {text}{_limit_of_addresses(parsed)}"


def _limit_of_addresses(card: Card) -> str:
    """What becomes of a card that has more memory than the process has addresses."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    needed = _PYTORCH_ADDRESSES + card.devices * card.memory_bytes
    if limit == resource.RLIM_INFINITY or limit > needed:
        return ""
    return (
        f". This process may use {format_size(limit)} of addresses (ulimit -v), so the "
        "card seems full before it is: raise that limit"
    )
