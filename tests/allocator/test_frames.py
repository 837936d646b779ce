"""What oomph._C does beyond the limited API, with each Python found here.

It reads a thread's own frames without the GIL, follows lines, finds objects, and what
holds them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from oomph import _C
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
FOLLOWS = """
import contextvars, importlib.util, json, sys

spec = importlib.util.spec_from_file_location("oomph._C", sys.argv[1])
C = importlib.util.module_from_spec(spec)
spec.loader.exec_module(C)


class Kept:
    pass


def lines(told):
    kept = 1
    return kept


told = []
code = lines.__code__
C.follow_lines(lambda _, what, __: told.append(what), code.co_filename.__eq__, 99)
lines(told)
C.unfollow_lines()
sys.settrace(lambda *event: None)
tracer = sys.gettrace()
C.follow_lines(lambda *event: None, bool, 99)  # a debugger's stays
stays = sys.gettrace() is tracer
sys.settrace(None)

held, _ = Kept(), contextvars.ContextVar("held").set([Kept()])
(_, in_context), mark = C.instances((Kept,))
newer = Kept(), Kept()
found = C.paths((in_context, held), (), (), 1 << 20)
print(json.dumps({
    "followed": told, "stays": stays,
    "newer": len(C.instances((Kept,), mark)[0]) >= 2,
    "path": [type(step).__name__ for step in next(filter(None, found))],
}))
"""
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def pythons() -> list[Path]:
    """The one that runs, and others of the versions that oomph knows."""
    names = [f"python3.{minor}" for minor in range(10, 15)]
    folders = [Path("/usr/bin"), *Path.home().glob(".pyenv/versions/*/bin")]
    found = [folder / name for folder in folders for name in names]
    return [Path(sys.executable), *(p for p in found if p.exists())]


def build(out: Path, *flags: str) -> None:
    """Builds oomph._C for all Pythons."""
    setup = build_description()
    subprocess.run(
        [
            *("cc", *setup["C_FLAGS"], "-fPIC", setup["LIMITED_API"]),
            *("-O1", "-shared", "-isystem", sysconfig.get_path("include"), *flags),
            *(
                *setup["system_includes"](setup["cuda_includes"]()),
                f"-I{ROOT / 'csrc'}",
            ),
            *(ROOT / name for name in setup["allocator_sources"]()),
            *("-o", out, *setup["C_LIBRARIES"]),
        ],
        check=True,
    )


def check(text: str) -> None:
    said = json.loads(text)
    wrong = {n: told for n, told in said["found"].items() if told[0] != told[2]}
    assert wrong == {}
    names = {name: told[1].rpartition(".")[2] for name, told in said["found"].items()}
    assert names["method"] == "method"
    assert names["generator"] == "generate"
    assert names["thread"] == names["library"] == "<lambda>"
    assert said["lambdas"], "code at the address of freed code was taken for it"


def run(python: Path, program: str) -> str:
    """What it prints with the oomph._C that is installed."""
    done = subprocess.run(
        [python, "-c", program, _C.__file__],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("python", pythons(), ids=str)
def test_lines_are_right_with_this_python(python):
    check(run(python, PROGRAM))


@pytest.mark.parametrize("python", pythons(), ids=str)
def test_lines_are_followed_and_objects_found_with_this_python(python):
    said = json.loads(run(python, FOLLOWS))
    assert "0, 2, 2, 3" in str(said["followed"])  # the call of lines()
    assert said["stays"] and said["newer"]
    assert said["path"][:2] == ["Kept", "list"]
    assert said["path"][-1] == "Context"


@pytest.mark.long
def test_reading_frames_is_clean_under_a_sanitizer(tmp_path):
    build(tmp_path / "_C.so", *SANITIZED)
    libraries = [
        subprocess.check_output(["cc", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "_C.so"],
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
