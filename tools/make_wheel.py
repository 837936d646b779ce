"""Makes the wheel that serves each PyTorch from 2.10 on, and the source archive.

Needs no PyTorch but the headers, which tools/torch_headers.py gets; what is built is
kept in build/objects until its source changes. All of it runs on a Linux of 2018
(tools/older_libraries.py).

    python tools/make_wheel.py [--torch 2.11 2.12] [--sdist]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import older_libraries
import torch_headers

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "python" / "oomph" / "base"))
import building  # noqa: E402  (needs nothing of oomph's)

MINORS = ["2.10", "2.11", "2.12", "2.13", "2.14", "2.15"]
PLATFORM = "manylinux_2_28_x86_64"
OUT = ROOT / "build" / "wheel"
OBJECTS = ROOT / "build" / "objects"
BYTES_MAX = 15 << 20


def run(*command: str | Path, **variables: str) -> str:
    """Runs a command, or ends with its exit code; gives what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(done.stdout)
        raise SystemExit(f"{command[0]} failed")
    return done.stdout


def digest(paths: list[Path], *more: object) -> str:
    """Tells contents apart."""
    found = hashlib.sha256(repr(more).encode())
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()[:24]


def compile_module(name: str, headers: torch_headers.Headers) -> Path:
    """The object of a module for a PyTorch, compiled unless it is kept."""
    source, begin = building.MODULES[name]
    code = [*(ROOT / "csrc" / source).parent.rglob("*.?pp")]
    parts = [*code, *ROOT.glob("csrc/oomph*/*.h"), ROOT / "csrc/oomph.h"]
    if name == "_values":
        parts = [*code, ROOT / "csrc/sim/sim.h"]
    out = OBJECTS / f"{digest(parts, headers.torch, building.FLAGS)}.o"
    if not out.exists():
        began = time.monotonic()
        OBJECTS.mkdir(parents=True, exist_ok=True)
        includes = [*headers.includes, Path(sysconfig.get_path("include"))]
        run(
            *(*building.find_compiler(), *building.FLAGS, "-w", "-c"),
            *(f"-I{ROOT / 'csrc' / begin}", *building.system_includes(includes)),
            *(ROOT / "csrc" / source, "-o", out.with_suffix(".part")),
        )
        out.with_suffix(".part").rename(out)
        print(
            f"{name} for {headers.torch}: {time.monotonic() - began:.0f} s", flush=True
        )
    return out


def make_glue(minor: str, older: list[str]) -> None:
    """Puts the modules for a PyTorch where setup.py looks for them."""
    headers = torch_headers.get(minor, ROOT / "build" / "torch")
    folder = OUT / "_glue" / building.folder_name(headers.torch)
    folder.mkdir(parents=True, exist_ok=True)
    for name in building.MODULES:
        run(
            *(*building.find_compiler(), "-shared", compile_module(name, headers)),
            *(*older, "-o", folder / f"{name}.abi3.so"),
            *building.make_stubs(OUT / "stubs"),
        )


def forget_builds() -> None:
    """Has setuptools link anew: it does not see that the arguments are others."""
    for folder in (*ROOT.glob("build/lib*"), *ROOT.glob("build/temp*")):
        shutil.rmtree(folder)


def make_wheel() -> Path:
    """Builds all else, and packs it with the glue; gives the wheel."""
    dist = ROOT / "dist"
    forget_builds()
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
    run(
        *(*pip, "--no-build-isolation", "--wheel-dir", OUT / "dist", "."),
        OOMPH_WHEEL=str(OUT),
    )
    forget_builds()
    (made,) = (OUT / "dist").glob("oomph-*.whl")
    wheel = (sys.executable, "-m", "wheel", "tags", "--remove")
    name = run(*wheel, "--platform-tag", PLATFORM, made).strip().splitlines()[-1]
    dist.mkdir(exist_ok=True)
    return Path(shutil.move(OUT / "dist" / name, dist / name))


def check(wheel: Path) -> None:
    """Ends unless the wheel is small, and runs where its name says."""
    if wheel.stat().st_size > BYTES_MAX:
        raise SystemExit(f"{wheel.name} has {wheel.stat().st_size} bytes")
    said = " ".join(run(sys.executable, "-m", "auditwheel", "show", wheel).split())
    found = re.search(r'platform tag to "manylinux_2_(\d+)_x86_64"', said)
    if found is None or (2, int(found[1])) > older_libraries.NEWEST:
        raise SystemExit(f"{wheel.name} is no {PLATFORM}: {said}")


def main() -> None:
    """Makes what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", nargs="+", default=MINORS, help="minor versions")
    parser.add_argument("--sdist", action="store_true", help="the source archive, too")
    options = parser.parse_args()
    began = time.monotonic()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    older = older_libraries.make(OUT)
    for minor in options.torch:
        make_glue(minor, older)
    wheel = make_wheel()
    check(wheel)
    if options.sdist:
        run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", "dist")
    size = wheel.stat().st_size / (1 << 20)
    print(f"{wheel}: {size:.2f} MiB in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
