"""Training scripts with machinery of their own: ranks, compilers, other allocators."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from recorded import by_stream, sizes_by_stream
from support import TESTS, oomph, run

RECORDED = TESTS / "recorded.py"
RANKS = TESTS / "scripts" / "train_ranks.py"
COMPILED = TESTS / "scripts" / "train_compiled.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TOO_SMALL = "host_limit:4GiB,reserve:64MiB"


def train(
    folder: Path, card: str, allocator: str, *command: str | Path, **variables: str
) -> list[dict[str, Any]]:
    """Runs a recorded script with an allocator; gives what each rank asked for."""
    result = folder / allocator
    chosen = ["--set", TOO_SMALL] if allocator == "oomph" else []
    *launcher, script = command[: command.index("--")]
    done = oomph(
        *("run", "--simulate", card, "--allocator", allocator, *chosen),
        *(*launcher, RECORDED, result, script, *command[command.index("--") + 1 :]),
        **variables,
    )
    assert done.code == 0, done.err
    return [
        json.loads(file.read_text()) for file in sorted(folder.glob(f"{allocator}.?"))
    ]


# ---- Ranks


@pytest.mark.long
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_ranks_ask_for_the_same_memory_with_and_without_enough(way, tmp_path):
    command = [*TORCHRUN, RANKS, "--", way]
    expected = train(tmp_path, "4GiB,devices=2", "native", *command)
    card = "320MiB,devices=2,context=0,host=32GiB"
    rescued = train(tmp_path, card, "oomph", *command)
    assert len(expected) == len(rescued) == 2
    for native, ours in zip(expected, rescued, strict=True):
        assert native["requested_peak"] > 320 << 20
        assert ours["rescues"] > 0
        # When communication ends, and frees what it used, is chance.
        assert sum(len(r) == 3 for r in native["requests"]) > 200
        assert sizes_by_stream(ours["requests"]) == sizes_by_stream(native["requests"])


# ---- Compiled code


@pytest.mark.long
def test_compiled_code_asks_for_the_same_memory_with_and_without_enough(tmp_path):
    caches = {
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    for _ in range(2):  # the first compiles, which allocates too
        (native,) = train(tmp_path, "4GiB", "native", COMPILED, "--", **caches)
    card = "160MiB,context=0,host=32GiB"
    (ours,) = train(tmp_path, card, "oomph", COMPILED, "--", **caches)
    assert native["requested_peak"] > 160 << 20
    assert ours["rescues"] > 0
    assert by_stream(ours["requests"]) == by_stream(native["requests"])


# ---- Another allocator

OTHER = """
#include <stddef.h>
void *cuda_take(size_t bytes, int device, void *stream) { return (void *)0x1000; }
void cuda_give(void *block, size_t bytes, int device, void *stream) {}
"""

CHANGE = """
import sys
import torch

def change():
    torch.cuda.memory.change_current_allocator(
        torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "cuda_take", "cuda_give")
    )

if sys.argv[2] == "late":
    block = torch.empty(1000, device="cuda")
    try:
        change()
    except RuntimeError as error:
        print(error)
    del block
else:
    change()
print(hex(torch.empty(1000, device="cuda").data_ptr()))
"""


@pytest.fixture(scope="module")
def other_allocator(tmp_path_factory) -> Path:
    source = tmp_path_factory.mktemp("other") / "other.c"
    source.write_text(OTHER)
    library = source.with_suffix(".so")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    return library


def test_another_allocator_may_replace_oomph_before_its_first_use(other_allocator):
    result = run(CHANGE, other_allocator, "early", card="1GiB", conf="offload:off")
    assert result.code == 0, result.err
    assert result.out == "0x1000\n"


def test_another_allocator_comes_too_late_once_oomph_is_in_use(other_allocator):
    result = run(CHANGE, other_allocator, "late", card="1GiB", conf="offload:off")
    assert result.code == 0, result.err
    message, address = result.out.splitlines()
    assert message == "Can't swap an already initialized allocator"
    assert address != "0x1000"
