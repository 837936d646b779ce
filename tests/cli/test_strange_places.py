"""Commands where things are not as on a developer's machine."""

from __future__ import annotations

import getpass
import resource
import sys
import tempfile
from pathlib import Path

import oomph_pytest
import pluggy
import pytest
from oomph.fitting.process import launcher
from oomph.fitting.process.record import Record
from oomph.fitting.runs import ScriptError
from oomph.setup import places
from support import execute, oomph, run

COMMAND = Path(sys.executable).with_name("oomph")
WRITES = "import sys; open(sys.argv[1], 'w').write('ran')"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_script_runs_though_streams_are_closed(closed, tmp_path):
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(WRITES)
    done = execute("sh", "-c", f"exec {COMMAND} run {script} {out} {closed}")
    assert (done.code, out.read_text()) == (0, "ran")


@pytest.mark.parametrize("command", ["--version", "doctor --json --sop"])
def test_output_that_finds_no_space_is_an_error_in_one_line(command):
    done = execute("sh", "-c", f"{COMMAND} {command} >/dev/full")
    assert done.code == 1
    assert done.err.endswith("oomph: no space is left for the output\n")
    assert "Traceback" not in done.err


def test_commands_go_on_though_their_folder_is_gone(tmp_path):
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(WRITES)
    gone = tmp_path / "gone"
    gone.mkdir()
    enter = f"cd {gone} && rmdir {gone} && {COMMAND}"
    done = execute("sh", "-c", f"{enter} --version && {COMMAND} run {script} {out}")
    assert done.code == 0, done.said
    assert out.read_text() == "ran"


def test_an_environment_that_is_active_and_another_is_named(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    done = oomph("run", script, VIRTUAL_ENV=str(tmp_path))
    assert done.out == "ran\n"
    assert f"not the Python of the active environment, {tmp_path}: install" in done.err


def test_a_pytorch_that_is_in_the_active_environment_alone_is_not_asked_for(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    monkeypatch.setattr(places.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f"environment, {tmp_path}: install oomph the"):
        places.name_other()


def test_a_path_has_letters_that_the_output_does_not(tmp_path):
    done = oomph("--version", VIRTUAL_ENV="/tmp/Käthe", PYTHONIOENCODING="ascii")
    assert done.code == 0, done.said
    assert r"/tmp/K\xe4the" in done.out


def test_no_place_for_temporary_files_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="set TMPDIR"):
        places.temporary_folder("fit")


def test_a_user_without_a_name_gets_one_for_pytorch(monkeypatch):
    def getuser() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    assert "LOGNAME" not in {*launcher._environment()} - {*launcher.os.environ}
    monkeypatch.setattr(getpass, "getuser", getuser)
    assert launcher._environment()["LOGNAME"].startswith("uid")


def test_a_limit_of_addresses_is_named_where_a_script_fails(monkeypatch):
    failed = Record("error", 1)
    assert "ulimit" not in str(ScriptError(failed, "1GiB"))
    monkeypatch.setattr(resource, "getrlimit", lambda what: (8 << 30, 8 << 30))
    said = str(ScriptError(failed, "1GiB"))
    assert "exit code 1 (this process may use 8.00 GiB of addresses (ulimit -v)" in said


def test_an_error_for_want_of_addresses_says_so_and_blames_no_tensor():
    code = """
import resource, torch
import oomph
torch.cuda.init()
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20), -1))
try:
    torch.ones(8, device="cuda")
except torch.OutOfMemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
print(oomph.last_oom(), torch.ones(8, device="cuda").shape)
"""
    said, rest = run(code, card="1GiB", conf="offload:auto").out.splitlines()
    assert "oomph: no address space is left for 1.00 GiB: this process may use" in said
    assert said.endswith("which PyTorch and the card share: raise that limit.")
    assert rest == "None torch.Size([8])"


@pytest.mark.long
def test_blanks_around_a_card_are_of_no_account():
    code = "import torch; print(torch.cuda.get_device_properties(0).total_memory >> 30)"
    assert run(code, card=" 12GiB\r", anew=True).out == "12\n"


def test_a_card_of_other_bytes_is_shown_so_that_one_sees_them():
    done = run("print('goes on')", card="12G\udcff", anew=True)
    assert done.out == "goes on\n"
    assert r"the GPU is not simulated: '12G\udcff' is no card" in done.err


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OOMPH_CONFIG", "OOMPH_CONF"),
        ("OOMPH_SIM", "OOMPH_SIMULATE"),
        ("OOMPH_SIMULATED", "OOMPH_SIMULATE"),
        ("OOMPH_HOME", None),
    ],
)
def test_a_variable_that_is_misspelt_is_named(name, meant):
    done = run("print('goes on')", anew=True, **{name: "12GiB"})
    assert done.out == "goes on\n"
    said = f"oomph: {name} is no variable of oomph: {meant} is\n" if meant else ""
    assert done.err == said


@pytest.mark.parametrize("versions", [("6.2.5", "1.0.0"), ("7.0.1", "1.1.0")])
def test_a_pytest_that_is_too_old_is_told_which_is_needed(versions, monkeypatch):
    monkeypatch.setattr(pytest, "__version__", versions[0])
    monkeypatch.setattr(pluggy, "__version__", versions[1])
    with pytest.raises(pytest.UsageError, match=r"needs pytest 7\.0 and pluggy 1\.2"):
        oomph_pytest._add_hooks(None)
