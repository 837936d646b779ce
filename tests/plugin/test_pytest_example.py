"""examples/test_memory.py: it passes, and tells what a larger batch takes."""

import re
import shlex
import sys

import pytest
from inner_pytest import run_pytest
from support import ROOT, execute

CARD = ("--simulate-gpu", "256MiB,context=0,memory=values")
EXAMPLE = "examples/test_memory.py"
_SECONDS = re.compile(r"\d+\.\d\ds(?: \([\d:]+\))?")


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def usual(storage):
    """The example as it stands, stored."""
    return run_pytest(
        ROOT, EXAMPLE, *CARD, "--cuda-memory-save", f"--cuda-memory-storage={storage}"
    )


def shown_run():
    """The command that docs/pytest.md shows a run of pytest with, and what it shows."""
    text = (ROOT / "docs" / "pytest.md").read_text()
    command, shown = re.findall(
        r"```console\n\$ (BATCH=.*?)\n```\n\n```text\n(.*?)\n```", text, re.S
    )[0]
    return command, shown


def test_the_example_passes_as_it_stands(usual):
    assert usual.code == 0, usual.out
    assert usual.outcomes["test_an_epoch"] == "PASSED"
    assert usual.outcomes["test_the_loss_after_an_epoch"] == "PASSED"
    assert usual.outcomes["test_losses_kept_without_item"] == "XFAIL"


def test_checkpointing_takes_less_in_the_example(usual):
    peaks = dict(re.findall(r"^test_a_step\[(\w+)\] +(\S+) MiB", usual.out, re.M))
    assert float(peaks["checkpoint"]) < 0.5 * float(peaks["plain"])


def test_a_larger_batch_breaks_the_limit_and_the_comparison(usual, storage):
    run = run_pytest(
        *(ROOT, EXAMPLE, *CARD, f"--cuda-memory-storage={storage}", "-k", "not kept"),
        *("--cuda-memory-compare", "--cuda-memory-fail=peak:5%"),
        BATCH="24",
    )
    assert run.code == 1
    broken = {k for k, v in run.outcomes.items() if v == "MEMORY PROBLEMS"}
    assert broken == {"test_an_epoch", "test_a_step[plain]", "test_a_step[checkpoint]"}
    assert run.texts["test_an_epoch"].startswith(
        "Test was limited to 32.00 MiB but allocated 32.51 MiB of GPU memory"
    )


def test_the_run_in_the_docs_is_what_its_command_prints():
    command, shown = shown_run()
    setting, *words = shlex.split(command.replace("\\\n", ""))
    assert setting == "BATCH=24" and words.pop(0) == "python"
    result = execute(
        *(sys.executable, *words, "-p", "no:cacheprovider"),
        cwd=ROOT,
        BATCH="24",
        COLUMNS="80",
    )
    said = result.out.strip()
    assert _SECONDS.sub("…", said) == _SECONDS.sub("…", shown)
