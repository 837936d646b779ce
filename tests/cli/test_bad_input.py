"""What no correct program asks for: a clear error, and nothing changes."""

import sys
from types import SimpleNamespace

import pytest
import torch
from support import GIB, MIB, Simulated, lines, oomph, run

CARD = "1GiB,context=0"
simulated = Simulated(CARD, "reserve:0,offload:off")
without_host = Simulated(CARD, "reserve:0,host_limit:0")
without_pages = Simulated(CARD + ",host-pages=none", "reserve:0,host_pages:numa")
pinned = Simulated(CARD + ",host-pages=none", "reserve:0,host_limit:64MiB")

# What is written, and what the error says: which setting, and what is allowed.
BAD_SETTINGS = [
    ("speed:3", "there is no setting 'speed'; there are: offload, recompute, strict"),
    ("offload", "'offload' is not a setting; write key:value"),
    ("offload=off", "'offload=off' is not a setting; write key:value"),
    (":off", "there is no setting ''"),
    ("offload:maybe", "offload: 'maybe' is not one of auto, off, on-oom, always"),
    ("strict:on", "strict: 'on' is not one of yes, no"),
    ("required:maybe", "required: 'maybe' is not one of auto, yes, no"),
    ("offload:off,offload:off", "'offload' is given twice"),
    (
        "device_limit:lots",
        "device_limit: 'lots' is not a size; write a number with KiB",
    ),
    ("device_limit:0", "device_limit: '0' is less than a page of 2 MiB"),
    ("device_limit:12", "device_limit: '12' is less than a page of 2 MiB: is a unit"),
    ("device_limit:-1GiB", "device_limit: '-1GiB' is not a size"),
    ("device_limit:nan", "device_limit: 'nan' is not a size"),
    ("device_limit:1e400", "device_limit: '1e400' is not a size"),
    ("host_limit:", "host_limit: '' is not a size"),
    ("host_limit:17179869184GiB", "host_limit: '17179869184GiB' is more than any"),
    ("reserve:-1", "reserve: '-1' is not a size"),
    ("reserve:9000000TiB", "reserve: '9000000TiB' is more than any machine has"),
    ("page:3MiB", "page: '3MiB' is not a power of two from 2MiB on"),
    ("plan:yes", "plan: 'yes' is not one of on, off"),
    ("recompute:on", "recompute: 'on' is not one of auto, always, off"),
    ("batch_finder:on", "batch_finder: 'on' is not one of auto, off"),
    ("host_pages:numa2", "host_pages: 'numa2' is not one of auto, numa, host"),
]
BAD_OPTIONS = [
    ({"speed": 3}, "there is no setting 'speed'"),
    ({"device_limit": True}, "device_limit: True is not a size"),
    ({"device_limit": 1.5}, "device_limit: 1.5 is less than a page"),
    ({"device_limit": []}, r"device_limit: \[\] is not a size"),
    ({"host_limit": 1.5}, "host_limit: 1.5 is not a size"),
    ({"host_limit": b"1GiB"}, "host_limit: b'1GiB' is not a size"),
    ({"reserve": -5}, "reserve: a size cannot be negative: -5"),
    ({"host_ahead": 1 << 65}, "host_ahead: .* is more than any machine has"),
    ({"plan": True}, "plan: True is not one of on, off"),
    ({"recompute": False}, "recompute: False is not one of auto, always, off"),
    ({"batch_finder": False}, "batch_finder: False is not one of auto, off"),
    ({"offload": ["off"]}, r"offload: \['off'\] is not one of auto, off, on-oom"),
    ({"page": 0}, "page: 0 is not a power of two"),
]


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


# ---- Settings


@pytest.mark.parametrize(("text", "why"), BAD_SETTINGS)
def test_a_bad_setting_is_refused_with_what_is_allowed(text, why):
    from oomph import SettingsError, settings

    with pytest.raises(SettingsError) as caught:
        settings.parse(text)
    assert str(caught.value).startswith(why)


def test_a_limit_of_one_is_the_whole_card():
    from oomph import settings

    assert settings.parse("device_limit:1") == {"device_limit": 1.0}


@pytest.mark.parametrize(("options", "why"), BAD_OPTIONS)
def test_a_bad_option_of_install_is_refused(options, why):
    import oomph

    with pytest.raises(oomph.SettingsError, match=why):
        oomph.install(**options)
    assert not oomph.is_installed()


def test_an_option_that_is_none_is_left_out():
    from oomph import settings

    assert settings.check({"device_limit": None, "plan": "off"}) == {"plan": "off"}


@pytest.mark.parametrize("text", ["speed:3", "offload", "device_limit:12"])
def test_a_broken_variable_breaks_neither_import_torch_nor_cuda(text):
    result = run(
        """
        import torch
        import oomph
        print(torch.ones(3, device="cuda").device, oomph.is_installed())
        """,
        card=CARD,
        conf=text,
    )
    assert (result.code, result.out) == (0, "cuda:0 False\n")
    warning = lines(result.err, "oomph is not in use: ")
    assert len(warning) == 1
    assert f"OOMPH_CONF={text}: " in warning[0]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--set", "speed:3"], "there is no setting 'speed'"),
        (["--set", "offload"], "'offload' is not a setting"),
        (["--device-limit", "lots"], "device_limit: 'lots' is not a size"),
        (["--device-limit", "12"], "is a unit missing?"),
        (
            ["--device-limit", "12GiB", "--set", "device_limit:1GiB"],
            "--device-limit and --set device_limit: give one of them",
        ),
        (["--allocator", "native", "--set", "plan:off"], "--set is for oomph"),
        (["--allocator", "native", "--device-limit", "x"], "'x' is not a size"),
        (["--shapes"], "--shapes needs a simulated GPU: add --simulate CARD"),
        (["--allocator", "other"], "invalid choice: 'other'"),
    ],
)
def test_a_bad_command_line_is_refused_before_the_script_starts(
    arguments, why, tmp_path
):
    script = tmp_path / "script.py"
    script.write_text("print('started')")
    result = oomph("run", *arguments, script)
    assert (result.code, result.out) == (2, "")
    assert why in result.err
    assert "Traceback" not in result.err


def test_a_script_that_is_not_there_is_named(tmp_path):
    result = oomph("run", tmp_path / "absent.py")
    assert result.code == 2
    assert result.err == f"oomph: there is no file {tmp_path / 'absent.py'}\n"


# ---- Limits that cannot be


def test_a_limit_above_the_card_is_an_error_when_the_card_is_known():
    result = run(
        "import torch; torch.ones(3, device='cuda')",
        card=CARD,
        conf="device_limit:2GiB",
    )
    assert result.code == 1
    assert (
        "RuntimeError: oomph: device_limit: 2.00 GiB is more than the 1.00 GiB of "
        "device 0; give less, or a fraction such as 0.9"
    ) in result.err


@without_host
def test_a_host_limit_of_nothing_is_no_offload():
    kept = take(GIB)
    with pytest.raises(torch.OutOfMemoryError, match="host_limit is 0"):
        take(16 * MIB)
    del kept


@without_pages
def test_host_pages_that_do_not_work_are_no_offload():
    kept = take(GIB)
    with pytest.raises(torch.OutOfMemoryError, match="no kind of host memory works"):
        take(16 * MIB)
    del kept


@pinned
def test_pinned_blocks_serve_where_host_pages_do_not_work():
    import oomph

    kept = [take(GIB), take(48 * MIB)]
    assert oomph.stats()["host_kind"] == "pinned blocks"
    with pytest.raises(torch.OutOfMemoryError, match="host_limit is 64.00 MiB"):
        take(32 * MIB)
    del kept


# ---- Sizes and addresses


@simulated
@pytest.mark.parametrize("size_bytes", [1 << 40, 1 << 47, (1 << 63) - 1])
def test_more_than_there_can_be_is_out_of_memory(size_bytes):
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        take(size_bytes)
    assert torch.cuda.memory_allocated() == 0


@simulated
@pytest.mark.parametrize("size_bytes", [1 << 63, (1 << 64) - 1])
def test_more_than_a_tensor_can_name_is_out_of_memory_too(size_bytes):
    with pytest.raises(torch.OutOfMemoryError, match="more than any address space"):
        torch._C._cuda_cudaCachingAllocator_raw_alloc(size_bytes, 0)


@simulated
def test_a_negative_size_is_an_error():
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        torch.cuda.caching_allocator_alloc(-1)
    with pytest.raises(RuntimeError, match="negative dimension"):
        take(-1)


@simulated
def test_nothing_takes_nothing():
    assert torch.cuda.caching_allocator_alloc(0) == 0
    torch.cuda.caching_allocator_delete(0)
    assert take(0).data_ptr() == 0


@simulated
@pytest.mark.parametrize("offset", [1, 512, -512, 1 << 30])
def test_an_address_that_is_no_block_cannot_be_freed(offset):
    kept = take(4096)
    with pytest.raises(
        RuntimeError, match="is not (a block in use|an address of oomph's)"
    ):
        torch.cuda.caching_allocator_delete(kept.data_ptr() + offset)
    assert torch.cuda.memory_allocated() == 4096
    del kept


@simulated
def test_a_block_cannot_be_freed_twice():
    address = torch.cuda.caching_allocator_alloc(4096)
    torch.cuda.caching_allocator_delete(address)
    with pytest.raises(RuntimeError, match=r"is not a block in use \(freed twice\?\)"):
        torch.cuda.caching_allocator_delete(address)


# ---- Devices


@simulated
def test_a_second_gpu_that_is_not_there_is_an_error():
    with pytest.raises(RuntimeError, match="Invalid device argument 1"):
        torch.cuda.memory_stats(1)
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.cuda.set_device(1)
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.empty(1, device="cuda:1")
    take(1000)


# ---- Installing


@pytest.mark.parametrize(
    "use", ["torch.cuda.init()", "kept = torch.ones(3, device='cuda')"]
)
def test_installing_once_cuda_is_in_use_is_refused(use):
    result = run(
        f"""
        import torch
        import oomph
        {use}
        try:
            oomph.install()
        except RuntimeError as error:
            print(error)
        print(oomph.is_installed(), torch.ones(3, device="cuda").device)
        """,
        card=CARD,
    )
    assert result.out.splitlines() == [
        "CUDA is in use already, by PyTorch's own allocator. Install oomph before the "
        "first CUDA tensor, or run the script with 'oomph run', or set OOMPH_CONF",
        "False cuda:0",
    ]


def test_installing_again_with_a_setting_that_depends_on_another_is_harmless():
    result = run(
        """
        import oomph
        for settings in ("offload:off,recompute:auto", "recompute:auto", "offload:off"):
            oomph.install(settings)
        """,
        card=CARD,
    )
    assert result.code == 0, result.err


def test_installing_again_is_harmless_or_says_which_settings_differ():
    result = run(
        """
        import oomph
        oomph.install(device_limit="512MiB")
        oomph.install("device_limit:512MiB")
        oomph.install()
        import torch
        kept = torch.ones(3, device="cuda")
        oomph.install(device_limit=512 << 20)
        for wanted in ({"device_limit": 0.5}, {"plan": "off"}):
            try:
                oomph.install(**wanted)
            except RuntimeError as error:
                print(error)
        """,
        card=CARD,
    )
    assert result.code == 0, result.err
    assert result.out.splitlines() == [
        f"oomph is installed already, with other settings ({what}); settings "
        "cannot change after that: change them where it is installed first, perhaps "
        "in OOMPH_CONF, or restart the notebook"
        for what in ("device_limit is 536870912, not 0.5", "plan is on, not off")
    ]


# ---- PyTorch that does not fit


def load_torch_class(version: str, cuda: str | None) -> None:
    from oomph.setup import installation

    other = SimpleNamespace(__version__=version, version=SimpleNamespace(cuda=cuda))
    installation._load_torch_class(other)  # type: ignore[arg-type]


def test_a_pytorch_for_the_cpu_is_refused():
    with pytest.raises(RuntimeError, match=r"2\.11\.0\+cpu is built for the CPU alone"):
        load_torch_class("2.11.0+cpu", None)


def test_another_pytorch_than_it_was_built_for_is_refused():
    built_for = ".".join(torch.__version__.split(".")[:2])
    with pytest.raises(RuntimeError) as caught:
        load_torch_class("2.99.1+cu130", "13.0")
    assert str(caught.value) == (
        f"oomph was built for PyTorch {built_for}, and this is 2.99.1+cu130: install "
        "oomph again"
    )


def test_a_class_that_cannot_be_loaded_is_refused(monkeypatch):
    import oomph

    monkeypatch.delattr(oomph, "_torch", raising=False)
    monkeypatch.setitem(sys.modules, "oomph._torch", None)
    with pytest.raises(RuntimeError, match=r"was not built for PyTorch .*: import"):
        load_torch_class(torch.__version__, "13.0")
