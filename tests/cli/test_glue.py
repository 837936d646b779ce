"""The modules for the PyTorch that runs: chosen, built where there are none, or not."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from oomph import _extensions
from oomph.base import building, glue
from support import run

OTHER = "import torch; torch.__version__ = {version!r}; import oomph; oomph.install()"
MODULE = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "NAME", nullptr, -1};
PyMODINIT_FUNC PyInit_NAME() { return PyModule_Create(&definition); }
"""


@pytest.mark.parametrize("version", ["2.99.0", "2.11.0.dev20260102+cu130"])
def test_a_pytorch_without_modules_is_told_what_is_missing(version, tmp_path):
    program = OTHER.format(version=version)
    nowhere = {"PATH": str(tmp_path), "CXX": None, "XDG_CACHE_HOME": str(tmp_path)}
    result = run(program, card="1GiB", anew=True, **nowhere)
    assert result.code == 1
    assert result.err.splitlines()[-1] == (
        f"RuntimeError: oomph was not built for PyTorch {version}: this oomph is for "
        f"these releases of PyTorch: {', '.join(glue.versions())}; and it cannot be "
        "built for another one here: there is no C++ compiler (g++ or clang++)"
    )


@pytest.mark.parametrize("name", ["_torch", "_C"])
def test_a_file_of_an_older_oomph_is_named(name, monkeypatch):
    old = Path(glue.__file__).parent.parent / f"{name}.cpython-311-x86_64-linux-gnu.so"
    import oomph._torch

    monkeypatch.setattr(getattr(oomph, name), "__file__", str(old))
    with pytest.raises(RuntimeError, match=f"an older oomph was left behind .*{old}"):
        _extensions.load("_torch", oomph._torch.built_for)


# ---- Building


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    """A source of modules that have nothing in them, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, (path, _) in building.MODULES.items():
        file = tmp_path / "csrc" / path
        file.parent.mkdir(parents=True)
        file.write_text(MODULE.replace("NAME", name))
    return tmp_path / "csrc"


@pytest.fixture
def torch_folder() -> Path:
    import torch

    return Path(torch.__file__).parent


def test_modules_are_built_once_into_the_users_cache(source, torch_folder, capfd):
    folder = building.build("2.99.0", torch_folder, source)
    assert folder.is_relative_to(building.cache_folder())
    assert building.is_whole(folder)
    assert "building for PyTorch 2.99.0, once" in capfd.readouterr().err
    assert building.build("2.99.0", torch_folder, source) == folder
    assert capfd.readouterr().err == ""


def test_another_source_is_built_anew(source, torch_folder):
    before = building.cached("2.99.0", source)
    (source / "torch" / "torch.cpp").write_text("// other\n")
    assert building.cached("2.99.0", source) != before


def test_what_the_compiler_refuses_is_not_tried_again(source, torch_folder, capfd):
    (source / "torch" / "torch.cpp").write_text("#error this is not known\n")
    with pytest.raises(building.BuildError, match="says: .*this is not known"):
        building.build("2.99.0", torch_folder, source)
    folder = building.cached("2.99.0", source)
    left = {path.suffix for path in folder.parent.iterdir()}
    assert left == {".failed", ".lock"}
    assert "(begins)" in capfd.readouterr().err
    failure = building.beside(folder, "failed")
    with pytest.raises(building.BuildError, match=f"not known.*remove {failure}"):
        building.build("2.99.0", torch_folder, source)
    assert capfd.readouterr().err == ""
    failure.unlink()
    with pytest.raises(building.BuildError, match="not known .CXX names another one.$"):
        building.build("2.99.0", torch_folder, source)


def test_a_compiler_may_have_arguments(source, torch_folder, monkeypatch):
    monkeypatch.setenv("CXX", "env g++")
    assert building.is_whole(building.build("2.99.0", torch_folder, source))


def test_a_compiler_that_fails_is_named(source, torch_folder, monkeypatch):
    monkeypatch.setenv("CXX", "/bin/false -v")
    said = r"the compiler /bin/false -v says: exit code 1 \(CXX names another one\)"
    with pytest.raises(building.BuildError, match=said):
        building.build("2.99.0", torch_folder, source)


def test_a_pytorch_before_the_oldest_is_not_tried(source, torch_folder, capfd):
    with pytest.raises(building.BuildError, match="pip install --upgrade torch"):
        building.build("2.9.1", torch_folder, source)
    assert capfd.readouterr().err == ""


def test_a_cache_that_cannot_be_written_is_named(source, torch_folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    with pytest.raises(building.BuildError, match=r"/proc/nowhere.*XDG_CACHE_HOME"):
        building.build("2.99.0", torch_folder, source)


def test_processes_that_want_the_same_build_it_once(source, torch_folder):
    program = (
        "import sys; from pathlib import Path; from oomph.base import building as b; "
        "b.build('2.99.0', Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", program, str(torch_folder), str(source)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    said = b"".join(process.communicate()[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert said.count(b"(begins)") == 1
    assert said.count(b" done)") == len(building.MODULES)


def test_what_a_killed_build_has_left_is_gone_after_the_next(source, torch_folder):
    left = building.cached("2.99.0", source).with_name("torch2.99.0.building")
    left.mkdir(parents=True)
    (left / "half").touch()
    folder = building.build("2.99.0", torch_folder, source)
    names = {path.name for path in folder.parent.iterdir()}
    assert names == {"torch2.99.0", "torch2.99.0.lock"}


def test_who_waits_for_another_build_is_reported(tmp_path, capfd):
    path = tmp_path / "lock"

    def wait() -> None:
        with building.locked(path):
            pass

    with building.locked(path):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join()
    assert capfd.readouterr().err == (
        "oomph: waits for another process that builds for this PyTorch\n"
    )


def test_a_user_without_a_home_is_told_which_variable_to_set(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: Path("~nobody_at_all").expanduser())
    with pytest.raises(building.BuildError, match="set XDG_CACHE_HOME to a folder"):
        building.cache_folder()
    assert "set XDG_CACHE_HOME" in glue.fit_of("2.99.0")
