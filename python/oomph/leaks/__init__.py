"""Finds the line that leaks memory, and what holds that memory.

``with oomph.leaks.watch(): …`` or the setting ``leaks:count``; then
:func:`oomph.leaks.report` and :func:`oomph.assert_no_leaks`. docs/leaks.md says how.
"""

import torch  # noqa: F401  # first: as its import ends, it may ask for a watch

from oomph.holders.lines import Line
from oomph.leaks.current import assert_no_leaks, report, watch
from oomph.leaks.findings import Finding, LeakError, Report
from oomph.leaks.watching import Watch

__all__ = [
    "Finding",
    "LeakError",
    "Line",
    "Report",
    "Watch",
    "assert_no_leaks",
    "report",
    "watch",
]
