"""Builds the glue of one version of PyTorch: what stands between it and oomph, in C++.

Nothing here needs oomph or PyTorch: setup.py and tools/make_wheel.py build by the same
arguments. A user's machine builds it once, from the source that oomph brings, where
there is none for the PyTorch that runs; it takes a minute.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion"]
LIMITED_API = "-DPy_LIMITED_API=0x030a0000"  # of Python 3.10: serves each later one
STANDARD = "-std=c++20"  # that PyTorch's headers need
FLAGS = [
    *(STANDARD, "-O2", "-fPIC", "-fno-plt", "-g0", "-fvisibility=hidden"),
    LIMITED_API,
]
# The module's source below csrc, and the folder that its #includes begin at.
MODULES = {
    "_torch": ("torch/torch.cpp", "."),
    "_values": ("sim/values/values.cpp", "sim"),
}
# Of PyTorch. It has loaded them before, and they are found by these names; the CUDA
# runtime, whatever version it is, comes with them.
LIBRARIES = ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch_python")


OLDEST = (2, 10)  # of PyTorch, that oomph can be built for


class BuildError(RuntimeError):
    """The glue could not be built; says why."""


def folder_name(version: str) -> str:
    """The folder of the glue of a version of PyTorch: ``torch2_11`` of 2.11.0+cu130."""
    major, minor = version.split(".")[:2]
    return f"torch{major}_{minor}"


def system_includes(folders: Iterable[Path]) -> list[str]:
    """The compiler's arguments for headers that are not ours."""
    return [part for folder in folders for part in ("-isystem", str(folder))]


def header_packages(cuda: str) -> dict[str, str]:
    """By header, the package that has it for a version of CUDA, for pip.

    A PyTorch for CUDA brings the first, which leaves out the second.
    """
    older = int(cuda.partition(".")[0]) < 13
    runtime = "nvidia-cuda-runtime-cu12" if older else "nvidia-cuda-runtime"
    rest = "nvidia-cuda-nvcc-cu12" if older else "nvidia-cuda-crt"
    names = {"cuda.h": runtime, "cuda_runtime.h": runtime, "crt/host_config.h": rest}
    return {header: f"{name}=={cuda}.*" for header, name in names.items()}


def cuda_includes(cuda: str = "13") -> list[Path]:
    """Where the CUDA headers are: in NVIDIA's packages, or in a toolkit.

    Args:
        cuda: The version of which packages are named where a header is missing.

    Raises:
        BuildError: One that is needed is in none of them.
    """
    spec = importlib.util.find_spec("nvidia")
    packages = (spec and spec.submodule_search_locations) or ()
    found = [p for place in packages for p in sorted(Path(place).glob("*/include"))]
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    found += [toolkit] if toolkit.exists() else []
    for name, package in header_packages(cuda).items():
        if not any((folder / name).exists() for folder in found):
            raise BuildError(
                f'the CUDA header {name} is missing: pip install "{package}"'
            )
    return found


def make_stubs(folder: Path) -> list[str]:
    """Makes libraries that have PyTorch's names and nothing in them.

    To link with them says which libraries are needed, and needs none.

    Returns:
        The linker's arguments.

    Raises:
        BuildError: The compiler cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        compile_with(
            *("-shared", "-nostdlib", "-x", "c", os.devnull),
            *(f"-Wl,-soname,lib{name}.so", "-o", str(folder / f"lib{name}.so")),
        )
    return [
        *("-Wl,--no-as-needed", f"-L{folder}"),
        *(f"-l{name}" for name in LIBRARIES),
        *("-Wl,--as-needed", "-Wl,--strip-all"),
    ]


# ---- On the user's machine


def cache_folder() -> Path:
    """Where what was built is kept for this user.

    Raises:
        BuildError: The user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "oomph"
    except RuntimeError:
        raise BuildError(
            "this user has no home directory: set XDG_CACHE_HOME to a folder for what "
            "oomph builds"
        ) from None


def cached(version: str, source: Path) -> Path:
    """The folder of the glue of this very PyTorch, built from this very source."""
    digest = hashlib.sha256()
    for path in sorted([*source.rglob("*.?pp"), *source.rglob("*.h")]):
        digest.update(path.read_bytes())
    return cache_folder() / digest.hexdigest()[:16] / f"torch{version}"


def is_whole(folder: Path) -> bool:
    """Whether all modules are in it."""
    return all((folder / f"{name}.abi3.so").exists() for name in MODULES)


def find_compiler() -> list[str]:
    """The C++ compiler: that of ``CXX``, with its arguments, or what there is.

    Raises:
        BuildError: There is none.
    """
    wanted = shlex.split(os.environ.get("CXX", ""))
    for command in (wanted, ["c++"], ["g++"], ["clang++"]):
        found = shutil.which(command[0]) if command else None
        if found is not None:
            return [found, *command[1:]]
    raise BuildError("there is no C++ compiler (g++ or clang++)")


def compile_with(*arguments: str) -> None:
    """Calls the compiler.

    Raises:
        BuildError: It fails; the text has the first of its errors.
    """
    command = find_compiler()
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        first = next((line for line in said if "error" in line), said[0])
        raise BuildError(
            f"the compiler {shlex.join(command)} says: {first} (CXX names another one)"
        )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock that all processes of this machine respect; says who waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waits for another process that builds for this PyTorch")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    if sys.stderr is not None:  # closed
        print(f"oomph: {text}", file=sys.stderr, flush=True)


def python_include() -> Path:
    """Where Python's headers are.

    Raises:
        BuildError: Nowhere.
    """
    import sysconfig  # takes milliseconds, and most never build

    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").exists():
        raise BuildError(
            f"Python's headers are missing ({folder}): install python3-dev"
        )
    return folder


def build_module(
    name: str, source: Path, includes: list[Path], link: list[str], out: Path
) -> None:
    """Compiles and links one module; a compiler's error is the end of it."""
    path, begin = MODULES[name]
    compile_with(
        *(*FLAGS, "-w", "-shared", f"-I{source / begin}"),
        *system_includes(includes),
        *(str(source / path), "-o", str(out / f"{name}.abi3.so"), *link),
    )


def build_modules(version: str, source: Path, includes: list[Path], out: Path) -> None:
    """Builds all modules, side by side, and says how far it is."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    def say(how_far: str) -> None:
        _say(f"building for PyTorch {version}, once, about a minute ({how_far})")

    say("begins")
    link = make_stubs(out / "stubs")
    with ThreadPoolExecutor() as pool:
        running = [
            pool.submit(build_module, name, source, includes, link, out)
            for name in MODULES
        ]
        for count, done in enumerate(as_completed(running), 1):
            done.result()
            say(f"{count} of {len(MODULES)} done")


def build(version: str, torch: Path, source: Path) -> Path:
    """Builds the glue of a PyTorch, unless that was done; one process at a time.

    Args:
        version: PyTorch's, in full.
        torch: Its package.
        source: oomph's C++ source.

    Returns:
        The folder of the modules.

    Raises:
        BuildError: It cannot be built here.
    """
    folder = cached(version, source)
    if is_whole(folder):
        return folder
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        raise BuildError("that needs PyTorch 2.10: pip install --upgrade torch")
    find_compiler()
    cuda = runpy.run_path(str(torch / "version.py"))["cuda"]
    includes = [torch / "include", *cuda_includes(cuda), python_include()]
    try:
        with locked(beside(folder, "lock")):
            if not is_whole(folder):
                _build_once(version, source, includes, folder)
    except OSError as error:
        raise BuildError(
            f"{cache_folder()} cannot be written ({error.strerror}): set "
            "XDG_CACHE_HOME to another folder"
        ) from None
    return folder


def beside(folder: Path, ending: str) -> Path:
    """A file of a build, next to its folder."""
    return folder.with_name(f"{folder.name}.{ending}")


def _build_once(version: str, source: Path, includes: list[Path], folder: Path) -> None:
    """Builds; what the compiler has refused is not tried again by each process."""
    failure = beside(folder, "failed")
    if failure.exists():
        raise BuildError(
            f"{failure.read_text()} (tried before; to try again, remove {failure})"
        )
    out = beside(folder, "building")  # by who holds the lock
    shutil.rmtree(out, ignore_errors=True)  # of who was killed
    out.mkdir()
    try:
        build_modules(version, source, includes, out)
        out.rename(folder)
    except BuildError as error:
        failure.write_text(str(error))
        raise
    finally:
        shutil.rmtree(out, ignore_errors=True)
