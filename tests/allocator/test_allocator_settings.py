"""PyTorch's own settings of its allocator: honoured, refused, or answered."""

import logging
import sys
from contextlib import contextmanager

import pytest
import torch
from support import MIB, ROOT, Simulated, execute, on_each, run

CARD = "1GiB,context=0"
CONF = "reserve:0,offload:off"
native = Simulated(CARD, None)
simulated = Simulated(CARD, CONF)
in_each_mode = on_each({"native": native, "oomph": simulated})


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def set_to(text: str) -> None:
    torch._C._accelerator_setAllocatorSettings(text)


@contextmanager
def said():
    """The lines of the log meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("oomph").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("oomph").removeHandler(handler)


# ---- What is refused

TEXTS = [
    *("", "foo:1,bar:2", "max_split_size_mb:40", "max_split_size_mb:2"),
    *("max_split_size_mb", "max_split_size_mb:some", "expandable_segments:yes"),
    *("garbage_collection_threshold:0.8", "garbage_collection_threshold:1.2"),
    *("roundup_power2_divisions:3", "roundup_power2_divisions:[64:8,>:1]"),
    *("per_process_memory_fraction:2", "per_process_memory_fraction:0.5"),
    *("backend:native", "backend:cudaMallocAsync", "backend:oomph"),
    *("release_lock_on_cudamalloc:none", "large_segment_size_mb:10"),
    *("pinned_num_register_threads:1024", "pinned_reserve_segment_size_mb:0"),
]


def outcomes() -> list[list[str]]:
    found = []
    for text in TEXTS:
        try:
            set_to(text)
            found.append(["accepted", text])
        except Exception as error:
            found.append([type(error).__name__, str(error)])
        finally:
            set_to("")
    return found


def test_a_setting_is_refused_as_the_native_allocator_refuses_it():
    wanted = native.call(__name__, "outcomes")
    assert sum(kind == "accepted" for kind, _ in wanted) == 6
    assert simulated.call(__name__, "outcomes") == wanted


# ---- What is honoured

DIVISIONS = [  # setting, bytes, bytes of the block
    ("roundup_power2_divisions:4", 80 * MIB, 80 * MIB),
    ("roundup_power2_divisions:4", 81 * MIB, 96 * MIB),
    ("roundup_power2_divisions:8", 129 * MIB, 144 * MIB),
    ("roundup_power2_divisions:4", 100_000, 114_688),
    ("roundup_power2_divisions:4", 2000, 2048),
    ("roundup_power2_divisions:[64:8,128:2,>:1]", 33 * MIB, 36 * MIB),
    ("roundup_power2_divisions:[64:8,128:2,>:1]", 129 * MIB, 192 * MIB),
    ("roundup_power2_divisions:[64:8,128:2,>:1]", 258 * MIB, 258 * MIB),
]


@in_each_mode
def test_sizes_are_rounded_up_between_powers_of_two():
    for text, asked, wanted in DIVISIONS:
        set_to(text)
        before = torch.cuda.memory_stats()
        kept = take(asked)
        after = torch.cuda.memory_stats()
        grown = {
            key: after[f"{key}.all.current"] - before[f"{key}.all.current"]
            for key in ("allocated_bytes", "active_bytes", "requested_bytes")
        }
        assert grown == {
            "allocated_bytes": wanted,
            "active_bytes": wanted,
            "requested_bytes": asked,
        }, text
        del kept
        set_to("")
        torch.cuda.empty_cache()
    kept = take(82 * MIB)
    assert torch.cuda.memory_allocated() == 82 * MIB
    del kept


@in_each_mode
def test_without_caching_each_tensor_is_the_drivers():
    from remote import sim_stats

    before = sim_stats().used_bytes
    torch.cuda.caching_allocator_enable(False)
    try:
        a = take(5 * MIB)
        a.zero_()
        assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0
        assert sim_stats().used_bytes >= before + 5 * MIB
        a.record_stream(torch.cuda.Stream())
        del a
        assert sim_stats().used_bytes == before
        with pytest.raises(torch.AcceleratorError, match="out of memory"):
            take(1 << 40)
    finally:
        torch.cuda.caching_allocator_enable(True)
    b = take(4 * MIB)
    assert torch.cuda.memory_allocated() == 4 * MIB
    del b


@in_each_mode
def test_the_settings_of_pinned_memory_are_those_of_its_allocator():
    torch.cuda.init()
    set_to("pinned_use_cuda_host_register:True,backend:native")
    try:
        host = torch.ones(1000, pin_memory=True)
        assert host.is_pinned() and host.sum() == 1000
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        assert settings["pinned_use_cuda_host_register"] is True
    finally:
        set_to("pinned_use_cuda_host_register:False")


@in_each_mode
def test_a_snapshot_tells_the_settings():
    text = "max_split_size_mb:30,roundup_power2_divisions:4"
    set_to(text)
    try:
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        assert settings["PYTORCH_CUDA_ALLOC_CONF"] == text
        assert settings["max_split_size"] == 30 * MIB
        assert set(settings["roundup_power2_divisions"].values()) == {4}
    finally:
        set_to("")


# ---- The environment

USES = """
import os
import torch
def told(call):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__, str(error).split(". GPU")[0])
def take(size):
    return torch.empty(size << 20, dtype=torch.uint8, device="cuda").numel() >> 20
os.environ.update(late.split("=") for late in {late!r}.split())
told(lambda: take(100))
if torch.cuda.is_initialized():
    told(lambda: torch.cuda.get_per_process_memory_fraction())
    told(lambda: (torch.cuda.empty_cache(), take(700))[1])
    told(lambda: torch.empty(100, pin_memory=True).is_pinned())
    told(lambda: torch.cuda.max_memory_allocated() >> 20)
"""
ENVIRONMENTS = {
    "foo:1": "ValueError Unrecognized key 'foo' in CUDA allocator config.\n",
    "backend:native": "100\n1.0\n700\nTrue\n700\n",
    "per_process_memory_fraction:0.5": "100\n0.5\nOutOfMemoryError CUDA out of "
    "memory. Tried to allocate 700.00 MiB\nTrue\n100\n",
}


@pytest.mark.parametrize("conf", [None, CONF], ids=["native", "oomph"])
@pytest.mark.parametrize("text", ENVIRONMENTS)
def test_the_environment_is_read_when_cuda_is_used_first(text, conf):
    late = f"PYTORCH_ALLOC_CONF={text}"
    result = run(USES.format(late=late), card=CARD, conf=conf)
    assert result.said.startswith(ENVIRONMENTS[text])


@pytest.mark.parametrize("conf", [None, CONF], ids=["native", "oomph"])
def test_caching_can_be_switched_off_in_the_environment(conf):
    late = "PYTORCH_NO_CUDA_MEMORY_CACHING=1"
    result = run(USES.format(late=late), card=CARD, conf=conf)
    assert result.out.splitlines() == ["100", "1.0", "700", "True", "0"]
    assert ("guard:unmap" in result.said) == (conf is not None)


@pytest.mark.long
def test_the_share_is_of_each_card_and_opens_none():
    result = run(
        """
        import ctypes
        import oomph, torch
        torch.cuda.init()
        shares = [torch.cuda.get_per_process_memory_fraction(i) for i in range(2)]
        try:
            torch.empty(600 << 20, dtype=torch.uint8, device="cuda:1")
        except torch.OutOfMemoryError:
            print(*shares, [oomph.stats(i)["device_limit_bytes"] >> 20 for i in (0, 1)])
        """,
        card=f"{CARD},devices=2",
        conf=CONF,
        PYTORCH_ALLOC_CONF="per_process_memory_fraction:0.5",
    )
    assert result.said == "0.5 0.5 [0, 512]\n"


# ---- What has no meaning here

VALUES = {
    "roundup_power2_divisions": "4",
    "garbage_collection_threshold": "0.5",
    "per_process_memory_fraction": "0.5",
    "backend": "native",
    "expandable_segments": "False",
}


@simulated
def test_each_setting_of_pytorch_is_honoured_or_answered_in_one_line():
    from oomph import _torch
    from oomph.setup import allocator_settings

    keys = set(_torch.settings_keys())
    assert keys >= {"backend", "max_split_size_mb", "per_process_memory_fraction"}
    assert keys <= set(allocator_settings.ANSWERS)
    for key in sorted(keys):
        answer = allocator_settings.ANSWERS[key]
        of_size = key.endswith("_mb")
        value = VALUES.get(key, "64" if of_size else "8" if "num" in key else "True")
        silent = answer.honoured or value == answer.default
        with said() as lines:
            set_to(f"{key}:{value}")
            set_to(f"pinned_num_register_threads:1,{key} : {value}")
        allocator_settings._report_once.cache_clear()
        set_to("")
        assert lines == (
            []
            if silent
            else [f"PyTorch's setting {key}:{value} has no effect: {answer.meaning}"]
        )
    set_to("pinned_use_cuda_host_register:False")


@simulated
def test_a_setting_of_a_newer_pytorch_is_named():
    from oomph.setup import allocator_settings

    with said() as lines:
        allocator_settings.note("brand_new:[1:2,3:4],expandable_segments:True")
    assert lines == [
        "PyTorch's setting brand_new:[1:2,3:4] has no effect: this version of oomph "
        "does not know it"
    ]


def test_the_documentation_has_the_tables_of_the_code():
    result = execute(sys.executable, ROOT / "tools" / "readme.py", "--check")
    assert (result.code, result.said) == (0, "")
