"""The pytest plugin: tests that limit, compare and report memory of a GPU.

This file is all that pytest loads where nothing of it is used: options, markers and
hooks, which import the rest, and PyTorch, once a test asks for it. It is no part of the
package ``oomph`` since importing that takes longer than a plugin may.

* :mod:`oomph_pytest.gpu`: which GPU there is, and simulating one.
* :mod:`oomph_pytest.markers`: what the markers say, and what breaks them.
* :mod:`oomph_pytest.meter`: peaks above a baseline, steps, out-of-memory errors.
* :mod:`oomph_pytest.sites`: which lines hold the memory.
* :mod:`oomph_pytest.running`: one test: measured, then judged.
* :mod:`oomph_pytest.benchmark`: the fixture ``cuda_memory``.
* :mod:`oomph_pytest.store`: runs in files, and which figures may not grow.
* :mod:`oomph_pytest.results`: what is told of a whole run.

docs/pytest.md is for users.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from oomph_pytest.benchmark import CudaMemory
    from oomph_pytest.store import Rule

MARKERS = {
    "limit_cuda_memory": "(limit): the test may allocate no more GPU memory than this "
    "at a time, such as '24 MiB'; what was alive before does not count",
    "limit_cuda_leaks": "(limit): no more of what the test allocated on the GPU may be "
    "alive after it",
    "stable_cuda_peak": "(steps, warmup=1, optimizer_steps=1, tolerance=0): after the "
    "warm-up, the peak of GPU memory must not grow over so many steps",
    "no_cuda_oom": "(allow_rescues=True): no allocation may run out of GPU memory, not "
    "even if the test catches the error",
    "no_worse_metric": "(name, tolerance=0, better='lower', baseline=None): what the "
    "test reports by cuda_memory.metric() must not be worse than in a stored run",
}
FIXTURE = "cuda_memory"


def _rule(text: str) -> Rule:
    """What --cuda-memory-fail reads."""
    import argparse

    from oomph_pytest.store import Rule

    try:
        return Rule.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options, two of which may stand in pytest's configuration file."""
    group = parser.getgroup("oomph", "GPU memory (oomph)")
    group.addoption(
        "--simulate-gpu",
        metavar="CARD",
        help="simulate the GPU, such as 12GiB (memory only), or 1GiB,memory=values "
        "(computed on the CPU, for small models)",
    )
    group.addoption(
        "--oomph",
        metavar="SETTINGS",
        help="have oomph allocate GPU memory, such as offload:on-oom (see OOMPH_CONF)",
    )
    group.addoption(
        "--cuda-memory-sites",
        action="store_true",
        help="record the lines that allocate, with PyTorch's memory history: slower",
    )
    group.addoption(
        "--cuda-memory-save",
        nargs="?",
        const="",
        metavar="NAME",
        help="store the figures of this run, of tests that use cuda_memory",
    )
    group.addoption(
        "--cuda-memory-compare",
        nargs="?",
        const="",
        metavar="RUN",
        help="compare with a stored run: its number, its name or its file; the newest "
        "unless said",
    )
    group.addoption(
        "--cuda-memory-fail",
        action="append",
        default=[],
        type=_rule,
        metavar="FIGURE:GROWTH",
        help="fail tests whose figure grew by more since the stored run, such as "
        "peak:5%% or reserved:10MiB; may be given several times",
    )
    group.addoption(
        "--cuda-memory-storage",
        metavar="FOLDER",
        default=".cuda_memory",
        help="where runs are stored, from pytest's root (default: %(default)s)",
    )
    group.addoption(
        "--cuda-memory-json",
        metavar="FILE",
        help="write the figures of this run to a file",
    )
    parser.addini("simulate_gpu", "the same as --simulate-gpu")
    parser.addini("oomph", "the same as --oomph")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Simulates the GPU, before any conftest.py can import PyTorch."""
    options = early_config.known_args_namespace
    card = options.simulate_gpu or early_config.getini("simulate_gpu")
    settings = options.oomph or early_config.getini("oomph")
    if card or settings:
        from oomph_pytest import gpu

        gpu.prepare(card, settings)


class Run:
    """What the tests of a run measured, whichever process they ran in."""

    def __init__(self) -> None:
        self.measured: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps what was measured of a test."""
        if getattr(report, "cuda_memory", None):
            self.measured.append(report.cuda_memory)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Stores the run and writes its JSON, if asked for."""
        option = session.config.option
        if option.cuda_memory_save is not None or option.cuda_memory_json:
            from oomph_pytest import results

            results.write(session.config, self.measured)

    def pytest_terminal_summary(
        self, terminalreporter: TerminalReporter, config: pytest.Config
    ) -> None:
        """Shows the table of what was measured."""
        if self.measured:
            from oomph_pytest import results

            results.show(terminalreporter, config, self.measured)


def pytest_configure(config: pytest.Config) -> None:
    """Tells pytest the markers, and finds the stored run that is asked for."""
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}{text}")
    if not hasattr(config, "workerinput"):  # but not in xdist's workers
        config.pluginmanager.register(Run(), "oomph_run")
    asked = (
        config.option.cuda_memory_save,
        config.option.cuda_memory_compare,
        config.option.cuda_memory_fail or None,
    )
    if any(option is not None for option in asked):
        from oomph_pytest import store

        store.check_options(config)


def pytest_report_header() -> str | None:
    """Says that the GPU is simulated, and what its figures do not mean."""
    import sys

    gpu = sys.modules.get("oomph_pytest.gpu")
    return None if gpu is None else gpu.header()


# ---- Tests with markers, or with the fixture


def _concerns(item: pytest.Item) -> bool:
    return any(mark.name in MARKERS for mark in item.iter_markers()) or (
        FIXTURE in getattr(item, "fixturenames", ())
    )


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Collector,
) -> Generator[None, Any, Any]:
    """Reads the markers of what was collected, so that mistakes are seen at once."""
    made = yield
    for item in made if isinstance(made, list) else [made]:
        if isinstance(item, pytest.Item) and _concerns(item):
            from oomph_pytest import markers

            try:
                markers.checks_of(item)
            except markers.MarkerError as error:
                raise collector.CollectError(str(error)) from None
    return made


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs a GPU where there is none, before its fixtures run."""
    if _concerns(item):
        from oomph_pytest import running

        running.prepare(item)


@pytest.hookimpl(wrapper=True, trylast=True)  # nearest to the test
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measures a test, and fails it if it does not do what its markers say."""
    if not _concerns(item):
        return (yield)
    from oomph_pytest import running

    return (yield from running.watch(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what was measured to the report, which goes to xdist's controller too."""
    if call.when != "call" or not _concerns(item):
        return (yield)
    from oomph_pytest import running

    return (yield from running.complete_report(item, call))


@pytest.fixture
def cuda_memory(request: pytest.FixtureRequest) -> CudaMemory:
    """Measures the GPU memory of a function: a benchmark of memory.

    ``cuda_memory(function, *arguments)`` calls it and gives its result. See
    docs/pytest.md.
    """
    from oomph_pytest.benchmark import CudaMemory

    return CudaMemory.of(request.node)


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """A test that fails for its memory is an M."""
    if report.failed and getattr(report, "cuda_memory", {}).get("problem"):
        return "failed", "M", "MEMORY PROBLEMS"
    return None
