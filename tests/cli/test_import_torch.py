"""``import torch`` and Python's start break of nothing that is called oomph."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import oomph as package
import pytest
from support import lines

INSTALLED = Path(package.__file__).parent
TELL = "import torch; print('imported', torch.cuda.is_available())"


def python(
    folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A Python that starts in a folder, as ``python -c`` does."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OOMPH_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def own_script(folder: Path) -> Path:
    """A program of somebody who has called it oomph."""
    path = folder / "oomph.py"
    path.write_text("print('mine')\n")
    return path


def own_folder(folder: Path) -> Path:
    path = folder / "oomph" / "__init__.py"
    path.parent.mkdir()
    path.write_text("")
    return path


def source(folder: Path) -> Path:
    """oomph as it is in a checkout, where nothing is built."""
    (folder / "oomph").mkdir()
    for path in INSTALLED.iterdir():
        if not path.name.startswith(("_C.", "_sim", "_glue")):
            (folder / "oomph" / path.name).symlink_to(path)
    return folder / "oomph" / "__init__.py"


@pytest.mark.long
@pytest.mark.parametrize("make", [own_script, own_folder, source])
def test_what_else_is_called_oomph_is_named_where_oomph_is_asked_for(make, tmp_path):
    path = make(tmp_path)
    asked = python(tmp_path, "-c", TELL, OOMPH_CONF="offload:auto")
    assert asked.stdout.split()[-2:] == ["imported", "False"], asked.stderr
    (line,) = lines(asked.stderr, "oomph is not in use")
    assert f"Python finds {path} in place of {INSTALLED}" in line


@pytest.mark.long
def test_a_program_of_that_name_runs_where_nobody_asks(tmp_path):
    own_script(tmp_path).write_text(TELL)
    found = python(tmp_path, "oomph.py")
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.long
def test_what_is_required_and_not_found_is_an_error(tmp_path):
    own_script(tmp_path)
    found = python(tmp_path, "-c", TELL, OOMPH_CONF="required:yes")
    assert found.returncode == 1
    assert "oomph is not in use: Python finds" in found.stderr


def test_python_starts_with_a_card_whatever_is_called_oomph(tmp_path):
    source(tmp_path)
    program = "print('started')"
    where = {"OOMPH_SIMULATE": "1GiB", "PYTHONPATH": str(tmp_path)}
    found = python(tmp_path.parent, "-c", program, **where)
    assert found.stdout == "started\n"
    (line,) = lines(found.stderr, "the GPU is not simulated")
    assert str(tmp_path / "oomph") in line


@pytest.mark.long
def test_a_card_is_told_to_be_left_out_where_python_reads_no_pth(tmp_path):
    site = str(INSTALLED.parent)
    found = python(tmp_path, "-S", "-c", TELL, OOMPH_SIMULATE="1GiB", PYTHONPATH=site)
    assert found.stdout.split() == ["imported", "False"], found.stderr
    (line,) = lines(found.stderr, "the GPU is not simulated: PyTorch was imported bef")
    assert f"{site}/oomph_simulate.pth" in line


@pytest.mark.long
def test_a_card_that_is_named_too_late_says_when_it_must_be(tmp_path):
    late = "import os; os.environ['OOMPH_SIMULATE'] = '1GiB'; "
    found = python(tmp_path, "-c", late + TELL)
    assert found.stdout.split() == ["imported", "False"], found.stderr
    (line,) = lines(found.stderr, "OOMPH_SIMULATE was set after Python had started")
    assert "restart the kernel" in line


def test_an_archive_with_oomph_says_why_it_cannot_be_used(tmp_path):
    archive = tmp_path / "app.pyz"
    with zipfile.ZipFile(archive, "w") as made:
        for package in ("oomph", "oomph_autoload"):
            for path in (INSTALLED.parent / package).rglob("*.py"):
                made.write(path, path.relative_to(INSTALLED.parent))
        made.writestr("__main__.py", "import oomph")
    found = python(tmp_path, str(archive))
    assert found.returncode == 1
    assert f"oomph lies in the archive {archive}, from which Python" in found.stderr


def test_a_folder_called_torch_is_not_taken_for_pytorch(tmp_path):
    for name in ("oomph", "oomph_autoload"):
        (tmp_path / name).symlink_to(INSTALLED.parent / name)
    (tmp_path / "torch").mkdir()
    found = python(
        tmp_path, "-S", "-c", "import oomph; oomph.install()", PYTHONPATH=str(tmp_path)
    )
    assert f"{tmp_path}/torch as torch, but there is no PyTorch in it" in found.stderr


@pytest.mark.long
def test_a_card_with_more_memory_than_addresses_says_what_to_raise(tmp_path):
    card = f"ulimit -v {20 << 20}; OOMPH_SIMULATE=16GiB exec {sys.executable}"
    found = subprocess.run(
        ["bash", "-c", f"{card} -c 'import torch'"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "This process may use 20.00 GiB of addresses (ulimit -v)" in found.stderr


ASKED = [{"OOMPH_CONF": "offload:auto"}, {"OOMPH_SIMULATE": "1GiB"}]
KEPT_OUT = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


@pytest.mark.long
@pytest.mark.parametrize("asked", ASKED, ids=["settings", "card"])
def test_where_pytorch_calls_no_plug_ins_it_is_said(asked, tmp_path):
    found = python(tmp_path, "-c", TELL, **asked, **KEPT_OUT)
    assert found.stdout.split() == ["imported", "False"], found.stderr
    (line,) = lines(found.stderr, "oomph is not in use")
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps PyTorch from calling oomph" in line


@pytest.mark.long
def test_where_pytorch_calls_no_plug_ins_what_is_required_is_an_error(tmp_path):
    found = python(tmp_path, "-c", TELL, OOMPH_CONF="required:yes", **KEPT_OUT)
    assert (found.returncode, found.stdout) == (1, "")
    assert "ImportError: oomph is not in use: TORCH_DEVICE_BACKEND" in found.stderr


def test_pythons_without_pytorch_say_nothing_of_its_plug_ins(tmp_path):
    asked = {"OOMPH_CONF": "required:yes", **KEPT_OUT}
    found = python(tmp_path, "-c", "print('started')", **asked)
    assert (found.stdout, found.stderr) == ("started\n", "")


def test_version_says_that_pytorch_calls_no_plug_ins(tmp_path):
    found = python(tmp_path, "-m", "oomph", "--version", **KEPT_OUT)
    (line,) = lines(found.stdout, "PyTorch 2.")
    assert "keeps PyTorch from calling oomph: unset it" in line


@pytest.mark.parametrize("question", [["run", "--simulate", "1GiB"], ["fit"]])
def test_without_pytorch_the_commands_say_what_to_install(question, tmp_path):
    (tmp_path / "oomph").symlink_to(INSTALLED)
    script = tmp_path / "train.py"
    script.write_text("")
    found = python(
        tmp_path, "-S", "-m", "oomph", *question, str(script), PYTHONPATH=str(tmp_path)
    )
    assert found.returncode == 2
    assert found.stderr == "oomph: PyTorch is not installed: pip install torch\n"
