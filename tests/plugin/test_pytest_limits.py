"""The pytest plugin's markers, each broken and kept, in one run on a simulated GPU."""

import re

import pytest
from inner_pytest import add_tests, run_pytest

MEMORY = "MEMORY PROBLEMS"


@pytest.fixture(scope="module")
def limits(tmp_path_factory):
    """The run of inner/limits.py on PyTorch's own allocator."""
    folder = tmp_path_factory.mktemp("limits")
    add_tests(folder, "limits.py")
    return run_pytest(
        folder,
        *("--simulate-gpu", "1GiB,context=0", "--cuda-memory-sites"),
        *("-rs", "--strict-markers", "--junitxml=junit.xml"),
    )


def text(run, name):
    """What was said of a test that failed for its memory."""
    assert run.outcomes[name] == MEMORY
    return run.texts[name.replace("::", ".")]


# ---- limit_cuda_memory


def test_a_test_within_its_limit_passes(limits):
    assert limits.outcomes["test_stays_below"] == "PASSED"


def test_a_test_beyond_its_limit_fails_and_names_the_lines(limits):
    said = text(limits, "test_goes_beyond").splitlines()
    assert said[0] == (
        "Test was limited to 24.00 MiB but allocated 31.50 MiB of GPU memory"
    )
    assert re.fullmatch(r"-+ GPU memory -+", said[1])
    assert said[2:] == [
        "Allocated at the peak, by line:",
        "     31.50 MiB  test_limits.py:14 in take, 4 blocks",
    ]


def test_sizes_have_the_units_of_pytest_memray(limits):
    units = {k: v for k, v in limits.outcomes.items() if k.startswith("test_units")}
    assert len(units) == 14
    for name, outcome in units.items():
        assert outcome == ("PASSED" if "[0+" in name else MEMORY), name


def test_what_was_alive_before_does_not_count(limits):
    assert limits.outcomes["test_has_a_large_fixture"] == "PASSED"


def test_a_test_that_resets_the_peak_hides_nothing(limits):
    assert "allocated 32.00 MiB" in text(limits, "test_resets_the_peak")


def test_the_nearest_marker_counts(limits):
    assert limits.outcomes["TestWithALimit::test_as_the_class_says"] == MEMORY
    assert limits.outcomes["TestWithALimit::test_says_otherwise"] == "PASSED"


def test_a_case_of_unittest_is_measured_too(limits):
    assert limits.outcomes["TestOfUnittest::test_case"] == MEMORY


def test_a_memory_problem_can_be_expected(limits):
    assert limits.outcomes["test_is_expected_to_fail"] == "XFAIL"


def test_a_test_that_fails_by_itself_is_no_memory_problem(limits):
    assert limits.outcomes["test_fails_by_itself"] == "FAILED"
    assert "KeyError" in limits.texts["test_fails_by_itself"]
    assert "Test was limited" not in limits.texts["test_fails_by_itself"]


# ---- limit_cuda_leaks


def test_what_a_test_leaves_is_found_in_each_call(limits):
    assert limits.outcomes["test_leaves[0]"] == "PASSED"
    assert limits.outcomes["test_leaves[1]"] == "PASSED"
    said = text(limits, "test_leaves[4]").splitlines()
    assert said[0] == (
        "Test was allowed to leave 1.00 MiB but left 4.00 MiB of GPU memory allocated"
    )
    assert said[2:] == [
        "Allocated after the test, by line:",
        "      4.00 MiB  test_limits.py:14 in take, 4 blocks",
    ]


def test_what_waits_for_the_garbage_collector_is_no_leak(limits):
    assert limits.outcomes["test_leaves_a_cycle"] == "PASSED"


def test_workspaces_of_libraries_are_no_leak(limits):
    assert limits.outcomes["test_uses_libraries"] == "PASSED"


def test_a_cache_that_the_first_call_fills_is_no_leak_after_a_warm_up(limits):
    said = text(limits, "test_fills_a_cache")
    assert "left 2.00 MiB of GPU memory allocated" in said
    assert limits.outcomes["test_has_filled_a_cache"] == "PASSED"
    assert limits.outcomes["test_has_run_three_times"] == "PASSED"
    assert limits.outcomes["TestOfUnittestThatWarmsUp::test_case"] == "PASSED"


def test_a_warm_up_hides_no_leak_of_each_call(limits):
    said = text(limits, "test_leaks_in_every_run")
    assert "left 1.00 MiB of GPU memory allocated" in said


def test_a_test_that_fails_while_warming_up_fails_by_itself(limits):
    assert limits.outcomes["test_fails_while_warming_up"] == "FAILED"
    assert "KeyError" in limits.texts["test_fails_while_warming_up"]


def test_several_markers_are_judged_together(limits):
    said = text(limits, "test_breaks_two")
    assert "Test was limited to 3.00 MiB but allocated 4.00 MiB of GPU memory" in said
    assert "Test was allowed to leave 1.00 MiB but left 4.00 MiB" in said


# ---- stable_cuda_peak


def test_a_peak_that_stays_passes(limits):
    assert limits.outcomes["test_trains"] == "PASSED"


def test_a_peak_that_grows_fails_with_its_growth_and_the_lines(limits):
    said = text(limits, "test_keeps_outputs").splitlines()
    assert re.fullmatch(
        r"Peak of GPU memory is not stable: \S+ MiB in step 2, \S+ MiB in step 6, "
        r"512\.00 KiB more in each \(tolerance 0 bytes\)",
        said[0],
    ), said[0]
    assert any(re.search(r"test_limits\.py:\d+ in train", line) for line in said[2:])


def test_growth_within_the_tolerance_passes(limits):
    name = "test_keeps_outputs_which_is_tolerated"
    assert limits.outcomes[name] == "PASSED"


def test_too_few_steps_are_no_proof(limits):
    said = text(limits, "test_has_too_few_steps")
    assert "over 6 steps after 1 of warm-up, but ended only 6; a step ends with" in said


def test_a_part_of_an_epoch_is_none(limits):
    said = text(limits, "test_has_too_few_epochs")
    assert "but ended only 3; a step ends with 2 steps of an optimizer" in said


def test_steps_of_an_epoch_are_taken_together(limits):
    assert limits.outcomes["test_has_epochs_of_two_steps"] == "PASSED"
    assert limits.outcomes["test_has_unequal_steps"] == MEMORY


def test_a_test_can_end_its_steps_itself(limits):
    assert limits.outcomes["test_ends_its_own_steps[False]"] == "PASSED"
    assert "1.00 MiB in step 1, 2.00 MiB in step 2" in (
        text(limits, "test_ends_its_own_steps[True]")
    )


# ---- no_cuda_oom


def test_a_test_that_fits_passes(limits):
    assert limits.outcomes["test_fits"] == "PASSED"


def test_an_error_that_is_caught_is_named(limits):
    said = text(limits, "test_catches_the_error").splitlines()
    assert said[:3] == [
        "Test must not run out of GPU memory, but did 2 times:",
        *["  test_limits.py:14 in take: tried to allocate 4.00 GiB on GPU 0"] * 2,
    ]


def test_an_error_that_is_raised_is_named_beside_its_traceback(limits):
    said = text(limits, "test_raises_the_error")
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB" in said
    section = said.partition("- GPU memory -")[2]
    assert "Test must not run out of GPU memory, but did once:" in section
    assert "3.00 MiB  test_limits.py:14 in take, 1 block" in section


# ---- what cannot be


def test_a_metric_of_a_gpu_that_computes_nothing_is_skipped(limits):
    assert limits.outcomes["test_reports_what_nothing_computed"] == "SKIPPED"
    assert "no_worse_metric: this simulated GPU computes nothing" in limits.out


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (0, "limit_cuda_memory('24 lightyears'): '24 lightyears' is not a size"),
        (1, "limit_cuda_memory('24'): '24' has no unit; write it as '24 MiB'"),
        (2, "limit_cuda_memory(): missing a required argument: 'limit'"),
        (3, "limit_cuda_leaks('1 MiB', per='call'): got an unexpected keyword"),
        (4, "limit_cuda_leaks(None): None is not a size"),
        (5, "limit_cuda_leaks('1 MiB', warmups=0.5): warmups=0.5 is not a number of"),
        (6, "stable_cuda_peak(steps=1): steps=1 is not a number of at least 2"),
        (7, "stable_cuda_peak(steps=2, warmup=-1): warmup=-1 is not a number of at"),
        (8, "no_cuda_oom('never'): allow_rescues='never' must be True or False"),
        (9, "better='bigger' must be 'lower' or 'higher'"),
        (10, "'-1%' is not 0 or more"),
        (11, "baseline='good' is not a number"),
    ],
)
def test_a_bad_marker_is_an_error_that_says_why(limits, number, why):
    assert limits.outcomes[f"test_bad[{number}]"] == "ERROR"
    said = limits.texts[f"test_bad[{number}]"].splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"test_limits.py::test_bad[{number}]: ")
    assert why in said[0]


def test_a_metric_without_the_fixture_is_an_error(limits):
    assert limits.outcomes["test_lacks_the_fixture"] == "ERROR"
    said = limits.texts["test_lacks_the_fixture"]
    assert "no_worse_metric needs the fixture cuda_memory" in said
