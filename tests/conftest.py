"""How tests are shared out, and how properties are tested."""

from __future__ import annotations

import pytest
from hypothesis import settings

# Machines are shared: that an example takes long says nothing.
settings.register_profile("oomph", deadline=None)
settings.load_profile("oomph")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file share processes, so one worker runs them, unless they say."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
