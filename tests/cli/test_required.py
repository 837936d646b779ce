"""Where oomph cannot start: an error, or PyTorch's own allocator and a word why."""

import subprocess

import pytest
from support import lines, oomph, run

CARD = "1GiB,context=0"
OLD = f"{CARD},driver=11080"
TOO_OLD = (
    "the CUDA driver is for CUDA 11.8; oomph needs one for CUDA 12.0 or newer (525.60 "
    "or newer)"
)
USE = """
import torch
import oomph
print(torch.cuda.get_allocator_backend(), oomph.is_installed())
print(torch.ones(3, device="cuda").device)
"""
NATIVE = ["native False", "cuda:0"]
# As another PyTorch would: the class of this one cannot be loaded.
MISFIT = "import sys; sys.modules['oomph._torch'] = None\n"


def reasons(result) -> list[str]:
    """Why oomph is not in use, as often as it was said."""
    return lines(result.err, "oomph is not in use")


# ---- oomph.install()


def test_install_goes_on_with_pytorchs_allocator_where_it_is_not_required():
    install = "import oomph; oomph.install(required='no')\n"
    result = run(install + install + USE, card=OLD)
    assert result.out.splitlines() == NATIVE
    assert reasons(result) == [f"oomph is not in use: {TOO_OLD}"]


def test_install_without_a_driver_goes_on_where_it_is_not_required():
    result = run(
        """
        import oomph
        oomph.install(required="no")
        import torch
        print(oomph.is_installed(), torch.ones(3).sum().item(), oomph.stats()["steps"])
        with oomph.no_offload():
            oomph.step()
        """
    )
    assert result.out == "False 3.0 0\n"
    (reason,) = reasons(result)
    assert "there is no CUDA driver" in reason


def test_install_says_that_cuda_is_in_use_already_where_it_is_not_required():
    result = run(
        """
        import torch
        kept = torch.ones(3, device="cuda")
        import oomph
        oomph.install(required="no")
        more = torch.ones(3, device="cuda")
        print(oomph.is_installed(), torch.cuda.memory_allocated())
        """,
        card=CARD,
    )
    assert result.out == "False 1024\n"
    (reason,) = reasons(result)
    assert "CUDA is in use already" in reason


def test_install_raises_by_default_and_where_it_is_required():
    for options in ("", "required='yes'"):
        result = run(f"{MISFIT}import oomph; oomph.install({options})", card=CARD)
        assert result.code == 1
        assert "RuntimeError: oomph was not built for PyTorch" in result.err


def test_a_wrong_setting_is_an_error_even_where_it_is_not_required():
    result = run("import oomph; oomph.install(required='no', speed=3)", card=CARD)
    assert "SettingsError: there is no setting 'speed'" in result.err


def test_looking_for_a_driver_leaves_the_choice_of_devices_open():
    result = run(
        """
        import os
        import torch
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        import oomph
        print(oomph.is_installed(), torch.cuda.device_count())
        """,
        card=f"{CARD},devices=2",
        conf="required:no",
    )
    assert result.said == "True 1\n"


# ---- OOMPH_CONF and oomph run


def test_the_variable_goes_on_by_default_and_says_why():
    result = run(MISFIT + USE, card=CARD, conf="reserve:0")
    assert result.out.splitlines() == NATIVE
    (reason,) = reasons(result)
    assert "oomph was not built for PyTorch" in reason


def test_a_warning_that_is_an_error_does_not_break_import_torch():
    result = run(MISFIT + USE, card=CARD, conf="reserve:0", PYTHONWARNINGS="error")
    assert result.out.splitlines() == NATIVE
    assert len(reasons(result)) == 1


def test_the_variable_may_say_that_an_old_driver_is_no_error():
    result = run(USE, card=OLD, conf="required:no")
    assert result.out.splitlines() == NATIVE
    assert reasons(result) == [f"oomph is not in use: {TOO_OLD}"]


@pytest.mark.parametrize("conf", ["required:yes", "speed:3, required : yes"])
def test_the_variable_may_say_that_import_torch_fails_instead(conf):
    result = run(MISFIT + USE, card=CARD, conf=conf)
    assert (result.code, result.out) == (1, "")
    cause = "no setting 'speed'" if "speed" in conf else "not built for PyTorch"
    assert cause in result.err
    assert reasons(result) == []


def test_a_script_may_require_what_the_variable_did_not():
    script = "import torch, oomph; oomph.install(required='yes'); print('in use')"
    assert run(script, card=CARD, conf="required:no").said == "in use\n"
    result = run(MISFIT + script, card=CARD, conf="required:no")
    assert result.code == 1 and len(reasons(result)) == 1


def test_oomph_run_takes_the_same_setting(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(USE)
    arguments = ("run", "--simulate", OLD, "--set")
    result = oomph(*arguments, "required:no", script)
    assert result.out.splitlines() == NATIVE
    assert len(reasons(result)) == 1
    result = oomph(*arguments, "required:yes", script)
    assert result.code == 1 and TOO_OLD in result.err


def test_a_pytorch_for_the_cpu_alone_is_reported(tmp_path):
    script = (
        "import torch\n"
        "torch.version.cuda = None\n"
        "import oomph\n"
        "oomph.install(required='no')\n"
        "print(oomph.is_installed())\n"
    )
    result = run(script, card=CARD)
    assert result.out == "False\n"
    (reason,) = reasons(result)
    assert "is built for the CPU alone" in reason


def test_the_stub_of_the_toolkit_is_told_from_a_driver(tmp_path):
    source = tmp_path / "stub.c"
    source.write_text("int cuDriverGetVersion(int *version) { return 34; }\n")
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    result = oomph("--version", LD_LIBRARY_PATH=str(tmp_path))
    assert f"{library} is the toolkit's stub, not a driver" in result.out
