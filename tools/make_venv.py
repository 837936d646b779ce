"""Makes a virtual environment with the CUDA build of PyTorch.

Where this Python has one already and the machine has a GPU, the environment uses it;
otherwise PyTorch is installed from the package index. Nothing is installed outside of
the environment.

    python3 tools/make_venv.py FOLDER REQUIREMENT
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import sys
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "python" / "oomph" / "base"))
from building import header_packages

# PyTorch 2.11 and 2.12 want setuptools older than 82; wheel is what it builds with.
BUILD_REQUIREMENTS = ["setuptools<82", "wheel"]


def has_gpu() -> bool:
    """Whether a CUDA driver finds a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        and count.value > 0
    )


def cuda_of_torch(version_file: Path) -> str | None:
    """The CUDA version that a PyTorch is built for, such as 13.0."""
    match = re.search(r"^cuda\b[^=]*= '([\d.]+)'", version_file.read_text(), re.M)
    return match.group(1) if match else None


def own_torch() -> Path | None:
    """The version file of the PyTorch that this Python has, if it has one."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent / "version.py" if spec and spec.origin else None


def pip(folder: Path, *arguments: str) -> None:
    """Runs pip of the environment, or stops with its exit code."""
    command = [str(folder / "bin" / "python"), "-m", "pip", *arguments]
    result = subprocess.run(command, check=False)
    if result.returncode != 0:
        raise SystemExit(result.returncode)


def torch_of(folder: Path) -> Path:
    """The version file of the PyTorch that the environment sees."""
    code = "import importlib.util as u; print(u.find_spec('torch').origin)"
    python = str(folder / "bin" / "python")
    found = subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True
    )
    return Path(found.stdout.strip()).parent / "version.py"


def missing_headers(cuda: str) -> str:
    """The package of the headers that the CUDA runtime's leaves out."""
    return header_packages(cuda)["crt/host_config.h"]


def main() -> None:
    """Makes the environment named on the command line."""
    folder, requirement = Path(sys.argv[1]), sys.argv[2]
    mine = own_torch()
    reuse = mine is not None and cuda_of_torch(mine) is not None and has_gpu()
    print(
        f"making {folder} ({'with this PyTorch' if reuse else requirement})", flush=True
    )
    venv.create(folder, with_pip=True, symlinks=True, system_site_packages=reuse)
    if reuse:
        return
    pip(folder, "install", *BUILD_REQUIREMENTS, requirement, "numpy")
    cuda = cuda_of_torch(torch_of(folder))
    if cuda is None:
        raise SystemExit(
            f"{requirement} is built for the CPU alone; oomph needs the CUDA build"
        )
    pip(folder, "install", missing_headers(cuda))


if __name__ == "__main__":
    main()
