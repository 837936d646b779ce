"""Reading a thread's own Python frames without the GIL, with each Python found here."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, build_description

PROGRAM = """
import functools, importlib.util, json, sys, sysconfig, threading

spec = importlib.util.spec_from_file_location("oomph._C", sys.argv[1])
C = importlib.util.module_from_spec(spec)
spec.loader.exec_module(C)
assert C.call_site() == 0
assert C.sites_start([sysconfig.get_path("stdlib") + "/"]) is None
found = {}


def note(name, site):
    found[name] = (*C.site_info(site)[1:], sys._getframe(1).f_lineno)


def generate():
    yield note("generator", C.call_site())


class Deep:
    def method(self, depth):
        if depth:
            return self.method(depth - 1)
        note("method", C.call_site())


def sites_of_lambdas():
    for i in range(300):
        scope = {"site": C.call_site}
        exec("\\n" * i + "f = lambda: site()", scope)
        yield C.site_info(scope["f"]())[1] == i + 1


note("module", C.call_site())
list(generate())
Deep().method(300)
note("comprehension", [C.call_site() for _ in range(2)][1])
note("library", functools.reduce(lambda a, b: C.call_site(), [1, 2]))
thread = threading.Thread(target=lambda: note("thread", C.call_site()))
thread.start()
thread.join()
print(json.dumps({"found": found, "lambdas": all(sites_of_lambdas())}))
"""
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def pythons() -> list[Path]:
    """The one that runs, and others of the versions that oomph knows."""
    names = [f"python3.{minor}" for minor in range(10, 15)]
    folders = [Path("/usr/bin"), *Path.home().glob(".pyenv/versions/*/bin")]
    found = [folder / name for folder in folders for name in names]
    return [Path(sys.executable), *(p for p in found if p.exists())]


@functools.cache
def include_of(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('include'))"
    return Path(subprocess.check_output([python, "-c", code], text=True).strip())


@functools.cache
def cuda_flags() -> list[str]:
    setup = build_description()
    return setup["system_includes"](setup["cuda_includes"]())


def compile_sources(out: Path, sources: list[str | Path], *flags: str | Path) -> None:
    subprocess.run(
        [
            *("cc", "-std=c17", "-D_GNU_SOURCE", "-g", "-fPIC", *flags),
            *(*cuda_flags(), f"-I{ROOT / 'csrc'}"),
            *(ROOT / name for name in sources),
            *("-o", out, "-lpthread", "-ldl"),
        ],
        check=True,
    )


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Path:
    """An object of the core, which needs no Python."""
    out = tmp_path_factory.mktemp("core") / "core.o"
    compile_sources(out, build_description()["core_sources"](), "-O1", "-r")
    return out


def build(python: Path, out: Path, core: list[str | Path], *flags: str) -> None:
    """Builds oomph._C for a Python."""
    setup = build_description()
    binding = sorted({*setup["allocator_sources"]()} - {*setup["core_sources"]()})
    headers = ("-isystem", include_of(python))
    compile_sources(out, [*binding, *core], "-O1", "-shared", *headers, *flags)


def check(text: str) -> None:
    said = json.loads(text)
    wrong = {n: told for n, told in said["found"].items() if told[0] != told[2]}
    assert wrong == {}
    names = {name: told[1].rpartition(".")[2] for name, told in said["found"].items()}
    assert names["method"] == "method"
    assert names["generator"] == "generate"
    assert names["thread"] == names["library"] == "<lambda>"
    assert said["lambdas"], "code at the address of freed code was taken for it"


@pytest.mark.parametrize("python", pythons(), ids=str)
def test_lines_are_right_with_this_python(python, core, tmp_path):
    if not (include_of(python) / "Python.h").exists():
        pytest.skip(f"the headers of {python} are not installed")
    build(python, tmp_path / "_C.so", [core])
    done = subprocess.run(
        [python, "-c", PROGRAM, tmp_path / "_C.so"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout)


def test_reading_frames_is_clean_under_a_sanitizer(tmp_path):
    python = Path(sys.executable)
    core = build_description()["core_sources"]()
    build(python, tmp_path / "_C.so", core, *SANITIZED)
    libraries = [
        subprocess.check_output(["cc", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    done = subprocess.run(
        [python, "-c", PROGRAM, tmp_path / "_C.so"],
        env={
            "LD_PRELOAD": ":".join(libraries),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python's own, at exit
            "PYTHONMALLOC": "malloc",  # so that each object is watched
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout)
