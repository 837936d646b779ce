"""oomph where it was not installed as usual, or where others came first."""

from __future__ import annotations

import glob
import os
import runpy
import shutil
import sys
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path

import oomph as package
import pytest
from oomph import simulate
from oomph.memory import host
from support import execute, run

INSTALLED = Path(package.__file__).parent
NAME = "import torch; print(torch.cuda.memory.get_allocator_backend())"
CARD = "1GiB,context=0"


@pytest.fixture
def moved(tmp_path) -> Path:
    """A folder with oomph in a place that is none of Python's own."""
    for name in ("oomph", "oomph_autoload"):
        shutil.copytree(INSTALLED.parent / name, tmp_path / "moved" / name)
    return tmp_path / "moved"


def starting(folder: Path, *arguments: str) -> str:
    """A program that adds a folder to its own path, and then is ``oomph``."""
    return (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "sys.modules.pop('oomph', None)\n"
        "from oomph.cli import main\n"
        f"sys.exit(main({[*arguments]!r}))\n"
    )


def test_a_script_finds_an_oomph_that_only_this_process_finds(moved, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import oomph; print(oomph.__file__)")
    done = run(starting(moved, "run", str(script)), anew=True)
    assert done.out == f"{moved}/oomph/__init__.py\n", done.err


@pytest.mark.long
def test_a_fit_finds_an_oomph_that_only_this_process_finds(moved, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, oomph\n"
        "torch.ones(1, device='cuda')\n"
        f"open({str(tmp_path / 'where')!r}, 'w').write(oomph.__file__)\n"
    )
    done = run(starting(moved, "fit", "--gpu", "2GiB", str(script)), anew=True)
    assert done.code == 0, done.said
    assert (tmp_path / "where").read_text() == f"{moved}/oomph/__init__.py"


SPAWNS = """
import multiprocessing
import torch

def child(queue):
    queue.put(torch.cuda.get_device_name())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    names = queue.get(timeout=120), torch.cuda.get_device_name()
    process.join()
    print(*names, torch.cuda.memory.get_allocator_backend(), sep=", ")
"""


@pytest.mark.long
@pytest.mark.parametrize("is_named", [False, True])
def test_such_a_script_and_its_children_have_the_simulated_card(
    moved, tmp_path, is_named
):
    script = tmp_path / "script.py"
    script.write_text(SPAWNS)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('hidden by none')")
    path = f"{tmp_path}/own" + (f":{moved}" if is_named else "")
    command = starting(moved, "run", "--simulate", f"{CARD},name=A", str(script))
    done = run(command, anew=True, PYTHONPATH=path)
    assert done.code == 0, done.said
    assert done.out.splitlines().count("A, A, oomph") == 1, done.said
    assert done.out.splitlines().count("hidden by none") >= 3
    assert done.err.count("the GPU is simulated") == 1


@pytest.mark.long
def test_a_child_that_finds_no_start_up_file_gives_no_alarm(moved, tmp_path):
    """It may need no card."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(moved)!r})\n"
        + SPAWNS.replace("torch.cuda.get_device_name()", "'none'")
    )
    done = execute(sys.executable, script, card=CARD, anew=True)
    assert done.code == 0, done.said
    assert done.out.startswith("none, none, "), done.said
    assert "not simulated" not in done.err


@pytest.mark.parametrize("shapes", [True, False])
def test_a_path_that_python_cannot_read_is_named(moved, tmp_path, shapes):
    there = moved.rename(tmp_path / "für")
    script = tmp_path / "script.py"
    script.write_text(NAME)
    depth = [] if shapes else ["--values"]
    words = ["-m", "oomph", "run", "--simulate", CARD, *depth, str(script)]
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = execute(sys.executable, *words, anew=True, PYTHONPATH=str(there), **plain)
    assert done.code == 0, done.said
    if shapes:
        assert "is not: set PYTHONUTF8=1 in the environment" in done.err
    else:
        assert done.out == "oomph\n", done.said


def test_it_is_said_where_the_script_would_find_no_oomph(moved, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    code = starting(moved, "run", str(script))
    done = execute(sys.executable, "-I", "-c", code, anew=True)
    assert (done.code, done.out) == (2, "")
    assert f"the script would not find oomph, which lies in {moved}" in done.err


def test_oomph_is_in_use_though_its_metadata_are_gone(moved):
    """As in images from which they were removed: PyTorch finds no plug-in then."""
    code = (
        "import importlib.metadata as metadata, sys\n"
        "metadata.entry_points = lambda **asked: ()\n"
        f"{NAME}; print(sys.modules['oomph_autoload'].__file__)\n"
    )
    asked = {"conf": "required:yes", "PYTHONPATH": str(moved)}
    done = run(code, card=CARD, anew=True, **asked)
    assert done.out == f"oomph\n{moved}/oomph_autoload/__init__.py\n", done.err


def test_a_card_that_is_asked_for_after_pytorch_is_not_there_and_it_is_said():
    code = (
        "import os, torch, oomph\n"
        f"os.environ['OOMPH_SIMULATE'] = {CARD!r}\n"
        "oomph.install()\n"
        "oomph.install()\n"
    )
    done = run(code, anew=True)
    assert done.code == 0, done.err
    assert done.err.count("OOMPH_SIMULATE was set after Python had started") == 1


def test_a_runtime_that_came_first_is_named():
    places = sysconfig.get_path("purelib"), "nvidia", "*", "lib", "libcudart.so.13"
    (runtime,) = glob.glob(os.path.join(*places))
    done = run(
        "import ctypes, oomph.simulate\n"
        f"ctypes.CDLL({runtime!r})\n"
        f"oomph.simulate.load({CARD!r})\n",
        anew=True,
    )
    assert done.code == 1
    assert f"SimulationError: {runtime} is loaded already" in done.err


def test_a_system_that_refuses_a_file_in_memory_has_no_card(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('goes on')")
    limited = f"ulimit -f 1000; exec {sys.executable} {script}"
    done = execute("sh", "-c", limited, card=f"{CARD},memory=values", anew=True)
    assert done.out == "goes on\n"
    assert "the GPU is not simulated: the system refuses a file in memory" in done.err
    assert "ulimit -f" in done.err


def test_host_memory_that_cannot_be_read_names_the_setting(monkeypatch, tmp_path):
    monkeypatch.setattr(simulate, "card_in_use", lambda: None)
    monkeypatch.setattr(host, "_MEMINFO", tmp_path / "meminfo")
    with pytest.raises(RuntimeError, match="say how much may be used with host_limit"):
        host.available_bytes()


def test_a_python_without_pytorch_is_named(tmp_path):
    done = execute(sys.executable, "-S", "-c", code_of(INSTALLED.parent), anew=True)
    assert "oomph needs PyTorch, which is not installed here" in done.err


def code_of(folder: Path) -> str:
    """It installs oomph, and finds nothing else."""
    return (
        "import sys, importlib.util as u\n"
        f"sys.path.append({str(folder)!r})\n"
        "class Hides:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ModuleNotFoundError(name='torch')\n"
        "sys.meta_path.insert(0, Hides())\n"
        "import oomph; oomph.install()\n"
    )


@pytest.mark.long
def test_pyinstaller_takes_all_that_is_chosen_by_name():
    hooks = entry_points(group="pyinstaller40")
    folders = [folder for entry in hooks for folder in entry.load()()]
    (hook,) = (h for folder in folders for h in Path(folder).glob("hook-oomph.py"))
    found = runpy.run_path(str(hook))
    assert {"oomph_autoload", "oomph.setup.autoload"} <= {*found["hiddenimports"]}
    taken = {Path(path).name for path, _ in found["binaries"]}
    assert {"libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1"} <= taken
    glue = {path.name for path in INSTALLED.glob("_glue/*/*.so")}
    assert glue
    assert glue <= taken
    assert any(where.endswith(".dist-info") for _, where in found["datas"])


@pytest.mark.long
def test_modules_that_are_loaded_anew_are_named_and_oomph_stays_in_use():
    """As %autoreload does after an upgrade in a notebook that runs."""
    code = """
import sys
import torch, oomph
oomph.install()
torch.ones(1, device="cuda")
for name in [name for name in sys.modules if name.split(".")[0] == "oomph"]:
    del sys.modules[name]
import oomph
print(oomph.is_installed())
try:
    oomph.install()
except RuntimeError as error:
    print(error)
"""
    done = run(code, card=CARD, anew=True)
    first, second = done.out.splitlines()
    assert first == "True"
    assert second.endswith("restart the kernel")
    assert "oomph" not in done.err.replace("oomph: the GPU is simulated", "")
