"""Which lines a failing test is told of, as oomph's core knows them."""

import re

import pytest
from inner_pytest import INNER, add_tests, run_pytest

SOURCE = (INNER / "lines.py").read_text().splitlines()


def line(start):
    """The number of the line that follows the one with this start."""
    return 2 + next(i for i, text in enumerate(SOURCE) if text.startswith(start))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")
    add_tests(folder, "lines.py")
    return run_pytest(
        folder,
        *("--simulate-gpu", "1GiB,context=0,devices=2"),
        *("--oomph", "offload:off,reserve:0"),
    )


def section(run, name):
    """What is said of lines, without the rule above."""
    assert run.outcomes[name] == "MEMORY PROBLEMS"
    return re.split(r"^-+ GPU memory -+\n", run.texts[name], flags=re.M)[1].splitlines()


def test_lines_hold_what_they_held_at_the_peak_beyond_what_was_there_before(run):
    assert section(run, "test_goes_beyond") == [
        "Allocated at the peak, by line, of blocks of 1 MiB and more:",
        f"     32.00 MiB  test_lines.py:{line('def take_too')} in take_too, 2 blocks",
        f"     12.00 MiB  test_lines.py:{line('def take(')} in take, 1 block",
    ]


def test_of_leaks_the_lines_of_what_is_left_are_reported(run):
    assert section(run, "test_leaves") == [
        "Allocated after the test, by line, of blocks of 1 MiB and more:",
        f"      4.00 MiB  test_lines.py:{line('def take(')} in take, 1 block",
    ]


def test_what_backward_allocated_is_reported_by_its_forward_line(run):
    made = line("def test_leaves_a_gradient")
    assert set(section(run, "test_leaves_a_gradient")[1:]) == {
        f"      4.00 MiB  test_lines.py:{made} in test_leaves_a_gradient, 1 block",
        f"      4.00 MiB  test_lines.py:{made + 1} in test_leaves_a_gradient, "
        "its backward, 1 block",
    }


def test_of_an_error_the_lines_that_held_the_memory_are_reported(run):
    said = "\n".join(section(run, "test_runs_out"))
    assert f"200.00 MiB  test_lines.py:{line('def take(')} in take, 1 block" in said


def test_of_several_gpus_the_one_that_is_meant_is_named(run):
    said = run.texts["test_uses_the_second_gpu"]
    assert "allocated 2.00 MiB of GPU memory of GPU 1\n" in said
    assert section(run, "test_uses_the_second_gpu")[1:] == [
        "  GPU 1:",
        f"      2.00 MiB  test_lines.py:{line('def test_uses_the_second')} in "
        "test_uses_the_second_gpu, 1 block",
    ]
