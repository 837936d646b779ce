"""Mutations of the Python packages."""

from __future__ import annotations

from mutations.mutation import Mutation

MUTATIONS = {
    "an optimizer that has ended works on": Mutation(
        "python/oomph/offload/recorder.py",
        """\
        step.temporary_bytes = max(step.temporary_bytes, temporary_bytes)
        self._before_optimizer = None
""",
        """\
        step.temporary_bytes = max(step.temporary_bytes, temporary_bytes)
""",
        (
            "tests/offload/test_planner.py::"
            "test_nothing_is_rescued_from_the_third_step_on",
            "tests/offload/test_policy.py",
            "tests/offload/test_planner.py",
        ),
    ),
    "a fetch does not wait for who had the memory": Mutation(
        "python/oomph/offload/transfer.py",
        "        back.wait_stream(stream)  # what used this memory before\n",
        "",
        (
            "tests/offload/test_saved.py::"
            "test_storages_that_are_resized_have_the_contents_they_have_at_their_use",
            "tests/offload/test_saved.py",
            "tests/offload/test_contents.py",
        ),
    ),
    "half of what is missing is enough": Mutation(
        "python/oomph/diagnosis/forecast.py",
        "peak.most <= self.room_bytes * (1 - SPARE)",
        "peak.most <= self.room_bytes + self.missing_bytes // 2",
        (
            "tests/diagnosis/test_forecast.py::test_what_is_said_to_be_enough_is_enough",
            "tests/diagnosis/test_forecast.py",
            "tests/diagnosis/test_shortage.py",
        ),
    ),
    "gradients set to zero in place pass for kept": Mutation(
        "python/oomph/leaks/gradients.py",
        "        self.touched |= gradient is None or "
        "gradient._version != self.version\n",
        "",
        (
            "tests/leaks/test_zoo.py::"
            "test_a_correct_script_is_not_accused[no_zero_grad_fixed]",
            "tests/leaks/test_zoo.py",
            "tests/leaks/test_leaks.py",
        ),
    ),
    "guard names the block of the newest fault": Mutation(
        "python/oomph/guard.py",
        "for text in reversed(simulate.misuses())",
        "for text in simulate.misuses()",
        (
            "tests/allocator/test_guard.py::test_of_several_faults_the_first_is_reported",
            "tests/allocator/test_guard.py",
        ),
    ),
    "a limit of the whole card is one byte": Mutation(
        "python/oomph/settings.py",
        "    if 0 < fraction <= 1:\n",
        "    if 0 < fraction < 1:\n",
        (
            "tests/cli/test_bad_input.py::test_a_limit_of_one_is_the_whole_card",
            "tests/cli/test_bad_input.py",
            "tests/allocator/test_memory.py",
        ),
    ),
    "the first limit of a control group counts": Mutation(
        "python/oomph/memory/host.py",
        "min(known) - used",
        "known[0] - used",
        ("tests/allocator/test_host_limit.py",),
    ),
    "steps that are left over make one more": Mutation(
        "python/oomph_pytest/markers.py",
        "range(0, len(all_peaks) - n + 1, n)",
        "range(0, len(all_peaks), n)",
        (
            "tests/plugin/test_pytest_limits.py::test_a_part_of_an_epoch_is_none",
            "tests/plugin/test_pytest_limits.py",
        ),
    ),
    "statistics go where the script stands at its end": Mutation(
        "python/oomph/cli.py",
        '{os.getpid()}:{os.path.abspath(file)}"',
        '{os.getpid()}:{file}"',
        (
            "tests/cli/test_ways_in.py::test_stats_are_written_however_a_script_ends",
            "tests/cli/test_ways_in.py",
        ),
    ),
    "child processes see no simulated card": Mutation(
        "python/oomph/simulate/__init__.py",
        "    os.environ[VARIABLE] = card\n",
        "",
        (
            "tests/simulator/test_simulated_start.py::"
            "test_the_children_of_a_process_that_loaded_a_card_have_it_too",
            "tests/simulator/test_simulated_start.py",
        ),
    ),
}
