"""What ``oomph --version`` says."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import oomph
from oomph import _C, simulate
from oomph.base import glue
from oomph.setup import plugins
from oomph.setup.places import other_environment


def torch_version() -> str:
    """PyTorch's, without importing it."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "not installed"


def _fit_of_torch() -> str:
    """Whether this oomph goes into the PyTorch that is found, without importing it."""
    found = simulate.torch_build()
    if found is None:
        return ""
    version, cuda = found
    if cuda is None:
        return ", built for the CPU alone: oomph needs the CUDA build"
    kept_out = plugins.kept_out()
    return f" for CUDA {cuda}: {glue.fit_of(version)}" + (
        "" if kept_out is None else f"; {kept_out}"
    )


def gpu_count() -> int:
    """How many GPUs the driver of this machine finds; 0 without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    failed = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


def driver_version() -> str:
    """The driver's CUDA version, from libcuda itself, which does not start CUDA."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "none"
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return "found, but does not respond"
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def _host_pages() -> str:
    """Which kind of host memory works on the first device, by trying."""
    try:
        return str(_C.probe_host(0))
    except (RuntimeError, ValueError, MemoryError) as error:
        return f"not known ({error})"


def _own_memory() -> str:
    """What the first device's memory is."""
    try:
        shares = _C.shares_memory(0)
    except (RuntimeError, ValueError) as error:
        return f"not known ({error})"
    if shares:
        return "the CPU's, so nothing is offloaded unless OOMPH_CONF=offload:on-oom"
    return "its own"


def _removing(package: Path) -> str:
    """How an oomph is removed."""
    folder = str(package.parent)
    if folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        return f"take {folder} out of PYTHONPATH"
    return f"pip uninstall oomph, in {folder}"


def unused() -> list[str]:
    """Other oomphs that are installed where this Python looks, after this one."""
    here = Path(oomph.__file__).parent
    others = {
        Path(str(found.locate_file("oomph"))).resolve(): found.version
        for found in metadata.distributions(name="oomph")
    }
    return [
        f"the oomph in {here} is in use, and another, {version}, is in {folder}: "
        f"remove the one that you do not mean ({_removing(here)}; or "
        f"{_removing(folder)})"
        for folder, version in others.items()
        if folder.is_dir() and folder != here.resolve()
    ]


def _python() -> str:
    """This Python, and whether another one's environment is active."""
    text = f"Python {platform.python_version()} in {sys.prefix}"
    active = other_environment()
    if active is None:
        return text
    return f"{text}, and not in the environment that is active, {active}"


def report() -> str:
    """Versions of oomph, PyTorch and the driver, and which host pages work here."""
    return "\n".join(
        (
            f"oomph {oomph.__version__}",
            *unused(),
            _python(),
            f"PyTorch {torch_version()}{_fit_of_torch()}",
            f"driver: {driver_version()}",
            f"memory of the GPU: {_own_memory()}",
            f"host memory in place of device memory: {_host_pages()}",
        )
    )
