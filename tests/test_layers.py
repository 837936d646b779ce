"""Who may include whom in csrc, and what ``import oomph`` brings along."""

import re
from pathlib import Path

import pytest
from support import ROOT, run

CSRC = ROOT / "csrc"
SIM = CSRC / "sim"

# The core from the bottom up: an include goes to a line above, or to the own header.
LAYERS = [
    "oomph",
    "util",
    "pack map lock",
    "block foresee plan driver stats notice site",
    "index table place page stream",
    "segment spill",
    "swap deferred",
    "device",
    "claim",
    "alloc check free garbage guard host inspect ladder move pool promote room share "
    "shortage steal trim",
]
# Free blocks are kept in the index, which is made of blocks.
ALSO = {("block.c", "index.h")}
# What binds the core to others sees its public header alone, and files of its own.
BINDINGS = {
    "api.c": {"oomph.h"},
    "driver_cuda.h": {"driver.h"},
    "driver_cuda.c": {"driver_cuda.h"},
    "driver_load.c": {"driver_cuda.h"},
    "driver_work.c": {"driver_cuda.h"},
    "frames.c": {"frames.h", "frames_layout.h", "lock.h", "map.h"},
    "frames.h": {"oomph.h"},
    "frames_layout.h": set(),
    "module.c": {"frames.h", "module.h"},
    "module.h": {"oomph.h"},
    "module_garbage.c": {"module.h"},
    "module_memory.c": {"module.h"},
    "module_sites.c": {"frames.h", "module.h"},
    "module_stats.c": {"module.h"},
    "module_plain.c": {"module.h"},
    "module_types.c": {"module.h"},
    "torch_core.hpp": {"oomph.h"},
    "torch_blocks.hpp": {"torch_core.hpp"},
    "torch_history.hpp": {"torch_core.hpp"},
    "torch_nccl.hpp": {"torch_core.hpp"},
    "torch_pools.hpp": {"torch_history.hpp"},
    "torch_share.hpp": {"torch_core.hpp"},
    "torch_holders.hpp": set(),
    "torch_settings.hpp": {"torch_core.hpp"},
    "torch_sites.hpp": {"torch_core.hpp"},
    "torch_saved.hpp": {"torch_allocator.hpp"},
    "torch_workspaces.hpp": set(),
    "torch_stats.hpp": {"torch_core.hpp"},
    "torch_requests.hpp": {
        *("torch_history.hpp", "torch_pools.hpp", "torch_settings.hpp"),
        *("torch_sites.hpp", "torch_stats.hpp", "torch_workspaces.hpp"),
    },
    "torch_allocator.hpp": {
        *("torch_blocks.hpp", "torch_nccl.hpp"),
        *("torch_requests.hpp", "torch_share.hpp"),
    },
    "torch.cpp": {"torch_allocator.hpp", "torch_holders.hpp", "torch_saved.hpp"},
}
# Blocks and plans know of nothing that acts.
PURE = ["block.c", "foresee.c", "index.c", "pack.c", "place.c", "plan.c", "table.c"]
ACTING = {"driver.h", "lock.h", "page.h", "stream.h"}
# Headers that are not ours, and who alone may include them.
FOREIGN = {
    r"cuda\.h|cudaTypedefs\.h": {"driver_cuda.h"},
    r"dlfcn\.h": {"driver_load.c", "torch_workspaces.hpp"},
    r"Python\.h": {
        *("frames.h", "frames_layout.h", "module.h"),
        *("torch.cpp", "torch_holders.hpp", "torch_saved.hpp"),
        "torch_settings.hpp",
    },
    r"(torch|c10|ATen)/.*|cuda_runtime.*": {
        *(name for name in BINDINGS if name.startswith("torch")),
    },
}

SUFFIXES = {".c", ".h", ".cpp", ".hpp"}
CORE = sorted(path.name for path in CSRC.iterdir() if path.suffix in SUFFIXES)


def includes(path: Path) -> tuple[set[str], set[str]]:
    """The names that a file includes: ours, in quotes, and others."""
    found = re.findall(r'^\s*#\s*include\s+(["<])([^">]+)[">]', path.read_text(), re.M)
    assert all("/" not in name for mark, name in found if mark == '"')
    ours = {name for mark, name in found if mark == '"'}
    return ours, {name for mark, name in found if mark == "<"}


def layer(name: str) -> int:
    stem = name.partition(".")[0]
    return next(i for i, line in enumerate(LAYERS) if stem in line.split())


def reach(name: str, graph: dict[str, set[str]]) -> set[str]:
    """All headers that a file includes, directly or not."""
    found: set[str] = set()
    todo = [name]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def graph_of(paths: list[Path]) -> dict[str, set[str]]:
    return {path.name: includes(path)[0] for path in paths}


# ---- csrc


@pytest.mark.parametrize("name", [n for n in CORE if n not in BINDINGS])
def test_a_file_of_the_core_includes_only_what_lies_below_it(name):
    ours, _ = includes(CSRC / name)
    own = name.replace(".c", ".h")
    wrong = {
        header
        for header in ours - {own}
        if layer(header) >= layer(name) and (name, header) not in ALSO
    }
    assert wrong == set()


@pytest.mark.parametrize("name", BINDINGS)
def test_a_binding_includes_nothing_of_the_core_but_its_public_header(name):
    assert includes(CSRC / name)[0] <= BINDINGS[name]


@pytest.mark.parametrize("name", PURE)
def test_what_is_pure_knows_of_nothing_that_acts(name):
    graph = graph_of([CSRC / n for n in CORE])
    assert reach(name, graph) & ACTING == set()


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_foreign_header_is_included_in_its_place_alone(foreign):
    users = {
        name
        for name in CORE
        if any(re.fullmatch(foreign, header) for header in includes(CSRC / name)[1])
    }
    assert users  # or else the pattern is wrong
    assert users <= FOREIGN[foreign]


def test_no_header_includes_itself_in_the_end():
    for headers in (CSRC.glob("*.h"), SIM.rglob("*.h")):
        graph = graph_of(list(headers))
        assert [name for name in graph if name in reach(name, graph)] == []


# ---- csrc/sim


def test_the_simulation_and_the_core_do_not_know_each_other():
    ours = {name for name in CORE if name.endswith((".h", ".hpp"))}
    for name in CORE:
        assert includes(CSRC / name)[0] <= ours, name


@pytest.mark.parametrize("library", ["libcuda", "libcudart", "libmath"])
def test_a_library_of_the_simulation_includes_its_own_headers_and_the_shared(library):
    folder = SIM / library
    known = {path.name for path in [*folder.glob("*.h"), *SIM.glob("*.h")]}
    for path in [*folder.glob("*.c"), *folder.glob("*.h")]:
        assert includes(path)[0] <= known, path.name


# ---- import oomph


def added_modules(statement: str) -> set[str]:
    """The modules that a statement imports."""
    result = run(
        f"import sys; had = set(sys.modules); {statement}\n"
        "print(*(sys.modules.keys() - had))"
    )
    assert result.code == 0, result.err
    return set(result.out.split())


def test_import_oomph_imports_neither_pytorch_nor_a_driver():
    added = added_modules("import oomph")
    assert {"oomph", "oomph.installation", "oomph.settings"} <= added
    assert not added & {"torch", "numpy", "ctypes", "json", "argparse", "logging"}
    assert not added & {"oomph._C", "oomph._torch", "oomph.report", "oomph.cli"}


def test_import_oomph_adds_few_modules():
    assert len(added_modules("import oomph")) <= 55


def test_the_entry_point_imports_nothing_where_nothing_is_asked_for():
    added = added_modules("import oomph._autoload; oomph._autoload.main()")
    assert not added & {"oomph.environment", "json"}
