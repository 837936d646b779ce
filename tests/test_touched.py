"""Which tests `make check` runs after a change, by what tools/touched.py says."""

import runpy
import subprocess
import sys

import pytest
from support import ROOT

TOOL = ROOT / "tools" / "touched.py"
touched = runpy.run_path(str(TOOL))["touched"]
SAFE = "tests/test_layers.py"


def programs(tests: list[str]) -> set[str]:
    """The C programs among tests."""
    return {test.partition("[address-")[2].strip("]") for test in tests if "[" in test}


def test_a_file_of_the_core_selects_its_programs_and_a_test_with_pytorch():
    found = touched(["csrc/core/memory/page.c"])
    assert {SAFE, "tests/allocator/test_memory.py"} <= {*found}
    assert "test_alloc" in programs(found)
    assert "test_layout" not in programs(found)
    assert "test_layout" in programs(touched(["csrc/core/layout/layout.c"]))


def test_a_header_of_the_core_selects_the_programs_that_include_it():
    text = '#include "core/heap/index.h"'
    users = {p.stem for p in ROOT.glob("tests/c/*_*.c") if text in p.read_text()}
    assert users
    assert users <= programs(touched(["csrc/core/heap/index.h"]))


def test_a_file_of_the_simulator_selects_its_programs_and_not_the_cores():
    found = programs(touched(["csrc/sim/libcuda/objects/stream.c"]))
    assert {"sim_stream", "sim_vmm"} <= found
    assert "test_alloc" not in found


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        ("leaks/hooks", "tests/leaks/test_leaks.py"),  # by its folder
        ("planner", "tests/offload/test_planner.py"),  # by its name
        ("offload/optimizers", "tests/values/test_random_training.py"),  # imports it
        ("diagnosis/program", "tests/diagnosis/test_shortage.py"),  # sees most of it
    ],
)
def test_a_module_selects_the_tests_of_it(module, wanted):
    found = touched([f"python/oomph/{module}.py"])
    assert {SAFE, wanted} <= {*found}
    assert "tests/simulator/test_clock.py" not in found


def test_a_module_of_the_plugin_selects_the_tests_of_the_plugin():
    assert "tests/plugin" in touched(["python/oomph_pytest/store.py"])


@pytest.mark.parametrize("page", ["docs/guard.md", "README.md", "CHANGELOG.md"])
def test_a_page_selects_the_tests_of_the_documentation_alone(page):
    assert touched([page]) == ["tests/test_site.py", "tests/test_errors.py"]


def test_a_test_selects_itself():
    assert touched(["tests/cli/test_required.py"]) == ["tests/cli/test_required.py"]
    assert programs(touched(["tests/c/test_page.c", "tests/c/sim_card.c"])) == {
        "sim_card"  # there is no other
    }


def test_of_the_program_in_parts_the_first_is_run():
    assert programs(touched(["tests/c/test_faults.c"])) == {"test_faults-0"}


def test_a_test_that_is_gone_selects_no_test_that_is_not_there():
    assert touched(["tests/cli/test_of_old.py"]) == [SAFE]


def test_what_tests_share_selects_tests_that_use_it():
    assert "tests/allocator/test_memory.py" in touched(["tests/support.py"])
    assert programs(touched(["tests/c/harness.h"])) >= {"test_alloc"}


@pytest.mark.parametrize("unknown", ["LICENSE", "examples/demo.py", "new/thing.rs"])
def test_a_file_that_nothing_is_known_of_selects_what_is_safe(unknown):
    assert touched([unknown]) == [SAFE]
    assert touched([unknown, "docs/guard.md"])[0] == SAFE


def test_tests_of_several_files_are_named_once():
    found = touched(["csrc/core/alloc/free.c", "csrc/core/alloc/alloc.c"])
    assert len(found) == len({*found})


def test_all_tests_that_it_knows_by_name_are_there():
    tests = touched([*(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/*/**/*.c"))])
    tests += [test for _, more in runpy.run_path(str(TOOL))["ALWAYS"] for test in more]
    files = {test for test in tests if "[" not in test}
    assert [name for name in files if not (ROOT / name).exists()] == []
    names = {name.removesuffix("-0") for name in programs(tests)}
    missing = {n for n in names if not (ROOT / f"tests/c/{n}.c").exists()}
    assert missing == set()


def test_the_command_says_a_test_a_line():
    said = subprocess.run(
        [sys.executable, str(TOOL)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert said
    assert all(line.startswith(("tests/", "benchmarks/")) for line in said)
