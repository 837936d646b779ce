"""Pytest's hooks for tests that have a marker or the fixture."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.terminal import TerminalReporter

from oomph_pytest import gpu, names, results, running

if TYPE_CHECKING:
    from oomph_pytest.on_card import OnCards


class Hooks:
    """What is done around such tests, and at the end, with what they measured."""

    def __init__(self) -> None:
        self.measured: list[dict[str, Any]] = []  # by whichever process it was
        self._on_cards: OnCards | None = None

    def pytest_report_header(self) -> str | None:
        """Says that the GPU is simulated, and what its figures do not mean."""
        return gpu.header()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Has a test run on a card of its own, if its marker says so."""
        fits = running.on_card(item)
        if fits is None:
            return None
        from oomph_pytest.on_card import OnCards

        self._on_cards = self._on_cards or OnCards()
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._on_cards.reports(item, fits):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        item.session._setupstate.teardown_exact(nextitem)  # the test before left these
        return True

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skips a test where there is no GPU, before its fixtures are set up."""
        if names.concerns(item):
            running.prepare(item)

    @pytest.hookimpl(wrapper=True, trylast=True)  # nearest to the test
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measures a test, and fails it if it does not do what its markers say."""
        if names.concerns(item):
            return (yield from running.watch(item))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Adds what was measured to the report, which goes to xdist's controller."""
        if call.when == "call" and names.concerns(item):
            return (yield from running.complete_report(item, call))
        return (yield)

    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str] | None:
        """A test that fails for its memory is an M."""
        if report.failed and getattr(report, "cuda_memory", {}).get("problem"):
            return "failed", "M", "MEMORY PROBLEMS"
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps what was measured."""
        if hasattr(report, "cuda_memory"):
            self.measured.append(report.cuda_memory)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Stores the run and writes its JSON, if asked for; not in xdist's workers."""
        if self._on_cards is not None:
            self._on_cards.stop()
        if not hasattr(session.config, "workerinput"):
            results.write(session.config, self.measured)

    def pytest_terminal_summary(
        self, terminalreporter: TerminalReporter, config: pytest.Config
    ) -> None:
        """Shows the table of what was measured."""
        results.show(terminalreporter, config, self.measured)
