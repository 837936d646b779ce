"""How tests are shared out, and how properties are tested."""

from __future__ import annotations

import pytest
from hypothesis import settings

# Machines are shared: that an example takes long says nothing.
settings.register_profile("oomph", deadline=None)
settings.load_profile("oomph")

# What takes minutes begins first, so that no worker is left with it in the end.
LONG = (
    *("test_failures.py", "test_forecast.py", "test_recomputed_failures.py"),
    *("test_launchers.py", "test_fit.py", "test_library_programs.py"),
    *("test_recomputed.py", "test_small_values.py", "test_shortage.py"),
)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file share processes, so one worker runs them, unless they say."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=lambda item: item.path.name not in LONG)
