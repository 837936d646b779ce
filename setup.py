"""Builds the extension modules and the libraries of the simulated GPU.

``oomph._C`` is the allocator and its binding in C, which needs no PyTorch. In
``oomph/_glue``, for the PyTorch that is installed, are ``_torch``, its allocator class,
and ``_values``, what computes on the simulated GPU. All of them are in Python's limited
API. Shared libraries in ``oomph/_sim`` make the simulated GPU; that of the runtime is
built for each major version of CUDA whose runtime is installed. The headers come from
PyTorch's own CUDA packages (and nvidia-cuda-crt): no toolkit.

With OOMPH_WHEEL, a folder that tools/make_wheel.py fills, it is for other machines than
this one: the glue of all versions of PyTorch is taken from there.

With OOMPH_SANITIZE=address or thread all of it is built for that sanitizer, for
tools/sanitize.py, which runs tests on it.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
CSRC = ROOT / "csrc"
PTH = "oomph_simulate.pth"

BUILDING = runpy.run_path(str(ROOT / "python/oomph/base/building.py"))
LIMITED_API = BUILDING["LIMITED_API"]
cuda_includes = BUILDING["cuda_includes"]
system_includes = BUILDING["system_includes"]
STUBS = runpy.run_path(str(CSRC / "sim/stubs.py"))
C_FLAGS = [
    *("-std=c17", "-D_GNU_SOURCE", "-O2", "-g", "-fvisibility=hidden"),
    *(*BUILDING["WARNINGS"], "-Werror=implicit-function-declaration"),
]
C_LIBRARIES = ["-pthread", "-ldl"]
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize=vptr"],
    "thread": ["-fsanitize=thread"],
}


def c_compiler() -> str:
    """The C compiler that setuptools takes."""
    chosen = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return chosen.split()[0]


for tool in (c_compiler(), "nm"):
    if shutil.which(tool) is None:
        raise SystemExit(
            f"oomph: there is no {tool}: to build oomph from its source needs a C and "
            "a C++ compiler and binutils (Debian: apt install build-essential); its "
            "wheel needs none"
        )


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


def sources(pattern: str) -> list[str]:
    """Files of the repository, relative to its root."""
    return sorted(str(p.relative_to(ROOT)) for p in ROOT.glob(pattern))


def core_sources(ending: str = "c") -> list[str]:
    """The C files of the core, which need no Python; or its headers."""
    folders = ("csrc", "csrc/oomph", "csrc/core/*", "csrc/driver")
    return [path for folder in folders for path in sources(f"{folder}/*.{ending}")]


def allocator_sources(ending: str = "c") -> list[str]:
    """The C files of ``oomph._C``, or the headers."""
    folders = ("csrc/python", "csrc/python/*")
    bindings = [path for folder in folders for path in sources(f"{folder}/*.{ending}")]
    return [*core_sources(ending), *bindings]


def simulated_driver_sources() -> list[str]:
    """The C files of the simulated ``libcuda.so.1``."""
    return sources("csrc/sim/libcuda/*/*.c")


def compiler_is_gcc() -> bool:
    """Whether the C compiler is GCC, whose link-time optimisation needs no plug-in."""
    try:
        version = subprocess.check_output([c_compiler(), "--version"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return "Free Software Foundation" in version


def optimised() -> list[str]:
    """How the allocator is compiled, and linked."""
    return ["-O3", "-flto=auto"] if compiler_is_gcc() else ["-O3"]


def core_flags() -> list[str]:
    """How the C files of the core are compiled, but for headers that are not ours."""
    return ["-DNDEBUG", *C_FLAGS, *optimised()]


def wheel_folder() -> Path | None:
    """What tools/make_wheel.py has prepared, if that is who builds."""
    folder = os.environ.get("OOMPH_WHEEL")
    return Path(folder) if folder else None


class SharedLibrary(Extension):
    """A plain shared library, kept under its own file name beside the package."""

    def __init__(
        self, file_name: str, stubs: Callable[[Path], Any] | None = None, **kwargs
    ) -> None:
        super().__init__(
            "oomph._sim." + file_name.replace(".", "_"),
            include_dirs=["csrc/sim"],
            depends=sources("csrc/sim/**/*.h"),
            extra_link_args=[f"-Wl,-soname,{file_name}", "-pthread"],
            **kwargs,
        )
        self.file_name = file_name
        self.stubs = stubs  # writes the source of csrc/sim/stubs.py into a folder


class Build(build_ext):
    """build_ext that keeps the names of shared libraries and generates their stubs."""

    def get_ext_filename(self, fullname: str) -> str:
        """A shared library goes under its own name, all else as always."""
        folder, _, name = fullname.rpartition(".")
        for ext in self.extensions:
            if isinstance(ext, SharedLibrary) and ext.name.rpartition(".")[2] == name:
                return os.path.join(*folder.split("."), ext.file_name)
        return super().get_ext_filename(fullname)

    def copy_extensions_to_source(self) -> None:
        """Of ``pip install --editable``; setuptools makes no folders for that."""
        for ext in self.extensions:
            folder = ROOT / "python" / Path(*ext.name.split(".")[:-1])
            folder.mkdir(parents=True, exist_ok=True)
        super().copy_extensions_to_source()

    def build_extension(self, ext: Extension) -> None:
        """Builds one extension or library, generated sources first."""
        if isinstance(ext, SharedLibrary) and ext.stubs:
            self.generate_stubs(ext)
        if isinstance(ext, Glue):
            stubs = Path(self.build_temp) / "torch"
            link = BUILDING["make_stubs"](stubs)
            ext.extra_link_args = [*ext.extra_link_args, *link]
        super().build_extension(ext)

    def generate_stubs(self, ext: SharedLibrary) -> None:
        """Adds the source of the names that a library must export, and their list."""
        out = Path(self.build_temp) / "stubs" / ext.name
        out.mkdir(parents=True, exist_ok=True)
        made = ext.stubs(out)
        ext.sources = [*ext.sources, str(made.source)]
        if made.version_script is not None:
            ext.extra_link_args = [
                *ext.extra_link_args,
                f"-Wl,--version-script={made.version_script}",
            ]


class BuildPy(build_py):
    """build_py that adds the start-up file which loads the simulated GPU."""

    def run(self) -> None:
        """Copies the package and the start-up file."""
        lib = Path(self.build_lib, "oomph")
        for left in lib.glob("*.cpython-*.so"):
            left.unlink()  # of an older oomph: Python would take these
        shutil.rmtree(lib / "_glue" / "csrc", ignore_errors=True)  # what has moved
        super().run()
        extra = self.editable_files() if self.editable_mode else self.extra_files()
        for source, out in extra:
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, out)

    def editable_files(self) -> list[tuple[Path, Path]]:
        """The start-up file, which lies beside packages, with where a wheel has it."""
        data = Path(self.get_finalized_command("install").install_data)
        return [(ROOT / "python" / PTH, data.parent / "purelib" / PTH)]

    def extra_files(self) -> list[tuple[Path, Path]]:
        """The start-up file, and the source of the glue, with where they go."""
        lib, made = Path(self.build_lib), wheel_folder()
        glue = made.glob("_glue/*/*.so") if made is not None else []
        brought = [(path, lib / "oomph" / path.relative_to(made)) for path in glue]
        parts = ["csrc/oomph.h", *sources("csrc/oomph/*.h"), "csrc/sim/sim.h"]
        parts += [*sources("csrc/**/*.hpp"), *sources("csrc/**/*.cpp")]
        copied = [(ROOT / part, lib / "oomph" / "_glue" / part) for part in parts]
        return [(ROOT / "python" / PTH, lib / PTH), *copied, *brought]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """All files that were made."""
        extra = [str(out) for _, out in self.extra_files()]
        return [*super().get_outputs(include_bytecode), *extra]


def simulated_runtime(major: int, library: Path, flags: list[str]) -> SharedLibrary:
    """The runtime of a version of CUDA, with its names and its headers."""
    own = system_includes([library.parent.parent / "include"])
    return SharedLibrary(
        f"libcudart.so.{major}",
        stubs=lambda out: STUBS["generate_cudart"](library, out),
        sources=sources("csrc/sim/libcudart/*.c"),
        extra_compile_args=[*own, *flags],
    )


def newest_cudnn(headers: Path) -> list[Path]:
    """Where the newest cuDNN's headers are, for a wheel: PyTorch refuses an older."""
    minors = sorted(headers.glob("2.*"), key=lambda minor: int(minor.name[2:]))
    name = "nvidia/*/include/cudnn_version.h"
    found = [path.parent for minor in minors for path in minor.glob(name)]
    return found[-1:]


def simulation(includes: list[str]) -> list[SharedLibrary]:
    """The libraries that make the simulated GPU."""
    headers = ROOT / "build" / "torch" if wheel_folder() is not None else None
    runtimes = STUBS["find_runtimes"](headers)
    if not runtimes:
        raise SystemExit("oomph: no libcudart.so.* found: install nvidia-cuda-runtime")
    flags = [*C_FLAGS, *includes]
    newest = system_includes(newest_cudnn(headers)) if headers else []
    return [
        SharedLibrary(
            "libcuda.so.1",
            sources=simulated_driver_sources(),
            extra_compile_args=flags,
        ),
        *(simulated_runtime(major, path, flags) for major, path in runtimes.items()),
        SharedLibrary(
            "liboomph_sim_math.so",
            stubs=lambda out: STUBS["generate_math"](headers, out),
            sources=sources("csrc/sim/libmath/*.c"),
            extra_compile_args=[*newest, *flags],
        ),
        SharedLibrary(
            "liboomph_sim_nccl.so",
            stubs=lambda out: STUBS["generate_nccl"](headers, out),
            sources=sources("csrc/sim/libnccl/*/*.c"),
            extra_compile_args=flags,
        ),
        SharedLibrary(
            "libnvidia-ml.so.1",
            sources=sources("csrc/sim/libnvml/*.c"),
            extra_compile_args=flags,
        ),
    ]


class Glue(Extension):
    """A module that is built for one PyTorch, in the folder of its version."""

    def __init__(self, name: str, version: str, includes: list[Path]) -> None:
        source, begin = BUILDING["MODULES"][name]
        folder = BUILDING["folder_name"](version)
        super().__init__(
            f"oomph._glue.{folder}.{name}",
            sources=[f"csrc/{source}"],
            depends=[*core_sources("h"), "csrc/sim/sim.h", *sources("csrc/**/*.hpp")],
            include_dirs=[str(Path("csrc") / begin)],
            language="c++",
            py_limited_api=True,
            extra_compile_args=[
                *BUILDING["FLAGS"],
                *BUILDING["WARNINGS"],
                "-Wno-shadow",  # the C headers have functions named as their types
                *system_includes(includes),
            ],
        )


def glue(version: str, includes: list[Path]) -> list[Extension]:
    """What stands between oomph and a version of PyTorch."""
    return [Glue(name, version, includes) for name in BUILDING["MODULES"]]


def cuda_torch() -> Path | None:
    """The PyTorch that is installed, if it is built for CUDA; it is not imported."""
    torch = package_dir("torch")
    has_cuda = torch is not None and (torch / "lib" / "libc10_cuda.so").exists()
    return torch if has_cuda else None


def sanitized(extension: Extension, sanitizer: str) -> Extension:
    """The same, built for a sanitizer: with lines in reports, and no inlining away."""
    flags = SANITIZERS[sanitizer]
    plain = ["-O1", "-g1", "-fno-lto", "-fno-omit-frame-pointer"]
    extension.extra_compile_args += [*plain, *flags]
    extension.extra_link_args = [
        *(f for f in extension.extra_link_args if f != "-Wl,--strip-all"),
        *("-fno-lto", *flags),
    ]
    return extension


def extensions() -> list[Extension]:
    """All that is built, for this environment."""
    torch, made = cuda_torch(), wheel_folder()
    version = runpy.run_path(str(torch / "version.py")) if torch else {"cuda": "13"}
    folders = cuda_includes(version["cuda"])
    includes = system_includes(folders)
    found = [
        Extension(
            "oomph._C",
            sources=allocator_sources(),
            py_limited_api=True,
            depends=allocator_sources("h"),
            include_dirs=["csrc"],
            extra_compile_args=[LIMITED_API, *core_flags(), *includes],
            extra_link_args=[*C_LIBRARIES, *optimised()],
        ),
        *simulation(includes),
    ]
    if made is not None:
        for extension in found:
            extension.extra_link_args += [str(made / "libolder.a"), "-Wl,--strip-all"]
    elif torch is not None:
        found += glue(version["__version__"], [torch / "include", *folders])
    sanitizer = os.environ.get("OOMPH_SANITIZE")
    return [sanitized(e, sanitizer) for e in found] if sanitizer else found


if __name__ == "__main__":  # tools and tests use the functions above
    try:
        wanted = extensions()
    except BUILDING["BuildError"] as error:
        raise SystemExit(f"oomph: {error}") from None
    setup(
        ext_modules=wanted,
        cmdclass={"build_ext": Build, "build_py": BuildPy},
        options={"bdist_wheel": {"py_limited_api": "cp310"}},
    )
