"""The pytest plugin: tests that limit, compare and report memory of a GPU.

This file and ``names`` are all that pytest loads where nothing of it is used. They are
short, since where no bytecode is written pytest compiles them each time, and no part of
the package ``oomph``, since importing that takes longer than a plugin may.

* :mod:`oomph_pytest.names`: the markers, and which tests have one.
* :mod:`oomph_pytest.hooks`: pytest's hooks, for runs that have a test for them.
* :mod:`oomph_pytest.gpu`: which GPU there is, and simulating one.
* :mod:`oomph_pytest.markers`: what the markers say, and what breaks them.
* :mod:`oomph_pytest.meter`: peaks above a baseline, steps, out-of-memory errors.
* :mod:`oomph_pytest.sites`: which lines hold the memory.
* :mod:`oomph_pytest.running`: one test: measured, then judged.
* :mod:`oomph_pytest.on_card`: tests on a card of their own.
* :mod:`oomph_pytest.benchmark`: the fixture ``cuda_memory``.
* :mod:`oomph_pytest.store`: runs in files, and which figures may not grow.
* :mod:`oomph_pytest.results`: what is reported of a whole run.

docs/pytest.md is for users. PYTEST_DONT_REWRITE: a process of on_card has imported it
before pytest, which would warn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy
import pytest

from oomph_pytest import names

if TYPE_CHECKING:
    from oomph_pytest.benchmark import CudaMemory

_FOLDER = ".cuda_memory"
_OPTIONS: dict[
    str, tuple[dict[str, Any], str]
] = {  # name: how it is read, and its help
    "--simulate-gpu": (
        {"metavar": "CARD"},
        "simulate the GPU, such as 12GiB (memory only), or 1GiB,memory=values "
        "(computed on the CPU, for small models)",
    ),
    "--oomph": (
        {"metavar": "SETTINGS"},
        "make oomph the allocator, with settings such as offload:on-oom (as in "
        "OOMPH_CONF)",
    ),
    "--cuda-memory-sites": (
        {"action": "store_true"},
        "record the lines that allocate, with PyTorch's memory history: slower",
    ),
    "--cuda-memory-save": (
        {"nargs": "?", "const": "", "metavar": "NAME"},
        "store the figures of this run, from tests that use cuda_memory",
    ),
    "--cuda-memory-compare": (
        {"nargs": "?", "const": "", "metavar": "RUN"},
        "compare with a stored run, given by number, name or file (default: the "
        "newest)",
    ),
    "--cuda-memory-fail": (
        {"action": "append", "default": [], "metavar": "FIGURE:GROWTH"},
        "fail tests whose figure grew by more since the stored run, such as peak:5%% "
        "or reserved:10MiB; may be given several times",
    ),
    "--cuda-memory-storage": (
        {"default": _FOLDER, "metavar": "FOLDER"},
        "where runs are stored, relative to pytest's root (default: %(default)s)",
    ),
    "--cuda-memory-json": (
        {"metavar": "FILE"},
        "write the figures of this run to a file",
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options, two of which may stand in pytest's configuration file."""
    group = parser.getgroup("oomph", "GPU memory (oomph)")
    for name, (how, text) in _OPTIONS.items():
        group.addoption(name, help=text, **how)
    parser.addini("simulate_gpu", "the same as --simulate-gpu")
    parser.addini("oomph", "the same as --oomph")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Simulates the GPU, before any conftest.py can import PyTorch."""
    if names.is_on_card:
        return
    options = early_config.known_args_namespace
    card = options.simulate_gpu or early_config.getini("simulate_gpu")
    settings = options.oomph or early_config.getini("oomph")
    if card or settings:
        from oomph_pytest import gpu

        gpu.prepare(card, settings)


def _add_hooks(config: pytest.Config) -> None:
    versions = pytest.__version__, pluggy.__version__
    ours, its = (tuple(map(int, v.split(".")[:2])) for v in versions)
    if ours < (7, 0) or its < (1, 2):
        raise pytest.UsageError(
            "oomph's plugin needs pytest 7.0 and pluggy 1.2 or later, and these are "
            f"{' and '.join(versions)}: pip install --upgrade pytest"
        )
    from oomph_pytest import hooks

    if not config.pluginmanager.has_plugin("oomph_hooks"):
        config.pluginmanager.register(hooks.Hooks(), "oomph_hooks")


def pytest_configure(config: pytest.Config) -> None:
    """Tells pytest the markers; adds the hooks where it is clear that they are needed.

    xdist's controller collects no tests and cannot know.
    """
    for name, text in names.MARKERS.items():
        config.addinivalue_line("markers", f"{name}{text}")
    given = [getattr(config.option, n[2:].replace("-", "_")) for n in _OPTIONS]
    given += [config.getini("simulate_gpu"), config.getini("oomph")]
    if any(value not in (None, "", False, [], _FOLDER) for value in given):
        from oomph_pytest import store

        store.check_options(config)
        _add_hooks(config)
    elif config.getoption("dist", "no") != "no":
        _add_hooks(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Adds the hooks if a test needs them."""
    if any(map(names.concerns, items)):
        _add_hooks(config)


@pytest.fixture
def cuda_memory(request: pytest.FixtureRequest) -> CudaMemory:
    """Measures the GPU memory of a function: a benchmark of memory.

    ``cuda_memory(function, *arguments)`` calls the function and returns its result.
    docs/pytest.md says how figures are measured, stored and compared.

    Args:
        request: The test, from pytest.

    Returns:
        A new :class:`~oomph_pytest.benchmark.CudaMemory` for the test.

    Example:
        >>> def test_a_step(cuda_memory):
        ...     cuda_memory(train, steps=1)
        ...     assert cuda_memory.figures["peak_bytes"] < 1 << 30
    """
    from oomph_pytest.benchmark import CudaMemory

    return CudaMemory.of(request.node)
