"""Builds the extension modules and the libraries of the simulated GPU.

Two extension modules: ``oomph._C``, the allocator and its binding in C, which needs
no PyTorch, and ``oomph._torch``, PyTorch's allocator class, for the PyTorch that is
installed. Three shared libraries in ``oomph/_sim`` make the simulated GPU. The
headers come from PyTorch's own CUDA packages (and nvidia-cuda-crt): no toolkit.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
CSRC = ROOT / "csrc"
PTH = "oomph_simulate.pth"

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion"]
C_FLAGS = ["-std=c17", "-O2", "-g", "-fvisibility=hidden", *WARNINGS]
CXX_FLAGS = ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", *WARNINGS]


def package_dir(name: str) -> Path | None:
    """Where an installed package lies, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    if spec is None:
        return None
    if spec.origin is not None:
        return Path(spec.origin).parent
    return Path(next(iter(spec.submodule_search_locations or [])))


def cuda_include() -> Path:
    """The include folder of PyTorch's CUDA runtime package."""
    for name in ("nvidia.cu13", "nvidia.cuda_runtime"):
        folder = package_dir(name)
        if folder is not None and (folder / "include" / "cuda.h").exists():
            return folder / "include"
    raise SystemExit(
        "oomph: the CUDA headers are missing. Install the CUDA build of PyTorch first "
        "(pip install torch), then nvidia-cuda-crt of the same CUDA version, and build "
        "with pip install --no-build-isolation."
    )


def sources(pattern: str) -> list[str]:
    return sorted(str(p.relative_to(ROOT)) for p in ROOT.glob(pattern))


class SharedLibrary(Extension):
    """A plain shared library, kept under its own file name beside the package."""

    def __init__(self, path: str, stubs: str | None = None, **kwargs) -> None:
        super().__init__(path.replace("/", "."), **kwargs)
        self.path = (
            path  # relative to the package root, such as oomph/_sim/libcuda.so.1
        )
        self.stubs = stubs  # which names csrc/sim/stubs.py generates for it


class Build(build_ext):
    """build_ext that keeps the names of shared libraries and generates their stubs."""

    def get_ext_filename(self, fullname: str) -> str:
        for ext in self.extensions:
            if isinstance(ext, SharedLibrary) and fullname in (
                ext.name,
                ext.name.rpartition(".")[2],
            ):
                return ext.path
        return super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        if isinstance(ext, SharedLibrary) and ext.stubs:
            self.generate_stubs(ext)
        super().build_extension(ext)

    def generate_stubs(self, ext: SharedLibrary) -> None:
        out = Path(self.build_temp) / "stubs" / ext.stubs
        out.mkdir(parents=True, exist_ok=True)
        generate = runpy.run_path(str(CSRC / "sim" / "stubs.py"))["generate"]
        made = generate(ext.stubs, [ROOT / s for s in ext.sources], out)
        ext.sources = [*ext.sources, str(made.source)]
        if made.version_script is not None:
            ext.extra_link_args = [
                *ext.extra_link_args,
                f"-Wl,--version-script={made.version_script}",
            ]


class BuildPy(build_py):
    """build_py that adds the start-up file which loads the simulated GPU."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copy(ROOT / "python" / PTH, Path(self.build_lib) / PTH)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib) / PTH)]


def simulation(include: Path) -> list[Extension]:
    """The three libraries that make the simulated GPU."""
    common = {
        "include_dirs": ["csrc/sim"],
        "extra_compile_args": ["-D_GNU_SOURCE", *C_FLAGS, "-isystem", str(include)],
    }
    depends = sources("csrc/sim/*.h") + sources("csrc/sim/*/*.h")
    return [
        SharedLibrary(
            "oomph/_sim/libcuda.so.1",
            sources=sources("csrc/sim/libcuda/*.c"),
            extra_link_args=["-Wl,-soname,libcuda.so.1"],
            depends=depends,
            **common,
        ),
        SharedLibrary(
            "oomph/_sim/libcudart.so.13",
            stubs="cudart",
            sources=sources("csrc/sim/libcudart/*.c"),
            extra_link_args=["-Wl,-soname,libcudart.so.13"],
            depends=depends,
            **common,
        ),
        SharedLibrary(
            "oomph/_sim/liboomph_sim_math.so",
            stubs="math",
            sources=sources("csrc/sim/libmath/*.c"),
            extra_link_args=["-Wl,-soname,liboomph_sim_math.so"],
            depends=depends,
            **common,
        ),
    ]


def torch_extension(torch: Path, include: Path) -> Extension:
    """PyTorch's allocator class, for the PyTorch that is installed."""
    cudart = next((include.parent / "lib").glob("libcudart.so.*"))
    return Extension(
        "oomph._torch",
        sources=["csrc/torch.cpp"],
        depends=["csrc/oomph.h"],
        language="c++",
        extra_compile_args=[
            *CXX_FLAGS,
            *("-isystem", str(torch / "include")),
            *("-isystem", str(include)),
        ],
        library_dirs=[str(torch / "lib"), str(cudart.parent)],
        libraries=["c10", "c10_cuda", "torch_cuda"],
        extra_link_args=[f"-l:{cudart.name}", "-Wl,--strip-all"],
    )


def extensions() -> list[Extension]:
    include = cuda_include()
    found = [
        Extension(
            "oomph._C",
            sources=sources("csrc/*.c"),
            depends=sources("csrc/*.h"),
            extra_compile_args=["-D_GNU_SOURCE", *C_FLAGS, "-isystem", str(include)],
        ),
        *simulation(include),
    ]
    torch = package_dir("torch")
    if torch is not None and (torch / "lib" / "libc10_cuda.so").exists():
        found.append(torch_extension(torch, include))
    return found


def torch_version() -> str:
    """The minor version of the PyTorch found, such as 2.11, or none."""
    torch = package_dir("torch")
    if torch is None:
        return ""
    match = re.search(r"__version__ = '(\d+\.\d+)", (torch / "version.py").read_text())
    return match.group(1) if match else ""


setup(ext_modules=extensions(), cmdclass={"build_ext": Build, "build_py": BuildPy})
