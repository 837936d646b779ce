"""What Python and PyTorch call by themselves where oomph is installed.

A package of its own, as the name ``oomph`` may mean something else in a program: its
own script of that name, or oomph's source, which is not built. Neither Python's start
nor ``import torch`` may break of that.

PYTEST_DONT_REWRITE: it may be imported before pytest, which would warn of it.
"""

from __future__ import annotations

import os
import re
import sys

_FOR_USERS = ("CONF", "SIMULATE")
_ASKING = {f"OOMPH_{name}" for name in (*_FOR_USERS, "STATS", "TRACE", "NATIVE_LIMIT")}
_ALIKE = 0.54  # of 1: from which on a name is taken for a misspelt one
_misspelt: set[str] = set()  # that were named
_called = False  # main(), since PyTorch was imported
_why: set[str] = set()  # it cannot be imported, as was said


def start() -> None:
    """What ``oomph_simulate.pth`` calls when Python starts, if anything is asked for.

    It loads the card of ``OOMPH_SIMULATE``. If PyTorch is set to call no plug-ins,
    nothing is done but to say so at ``import torch``. Where it finds none, as oomph's
    metadata were not copied, :func:`main` is called all the same.
    """
    asked = {name for name in _ASKING if os.environ.get(name)}
    if not asked:
        _name_misspelt()
    try:
        kept_out = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1"
        if asked and (kept_out or not _has_metadata()):
            from oomph.setup import plugins

            plugins.after_import(_refuse, main)
        if "OOMPH_SIMULATE" in asked and not kept_out:
            from oomph.simulate import startup

            startup.main()
    except ImportError as error:
        card = "OOMPH_SIMULATE" in asked
        undone = "oomph: the GPU is not simulated" if card else "oomph is not in use"
        reason = _explained(error)
        if reason not in _why:  # Python may read the file twice
            _say(f"{undone}: {reason}")
        _why.add(reason)


def main() -> None:
    """PyTorch's plug-in entry point, called at the end of ``import torch``.

    It does nothing unless the environment asks for something.

    Raises:
        Exception: Whatever stands in the way, if ``OOMPH_CONF`` says ``required:yes``.
    """
    global _called
    if _called or not any(name.startswith("OOMPH_") for name in os.environ):
        return
    _called = True
    try:
        from oomph import _C  # noqa: F401 - what is built
        from oomph.setup import autoload
    except ImportError as error:
        _refuse(_explained(error))
        return
    autoload.main()
    if "OOMPH_SIMULATE_USERS" in os.environ:  # a script of oomph fit has started this
        from oomph.fitting.process import spawned

        spawned.look()


def _has_metadata() -> bool:
    """Whether PyTorch can find the entry point; some images are made without."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    names = os.listdir(folder) if os.path.isdir(folder) else ()  # an archive
    return any(re.fullmatch(r"oomph(-.*\.dist|-.*\.egg|\.egg)-info", n) for n in names)


def _name_misspelt() -> None:
    """Says which variable was meant, where only another is set that is much like it."""
    import difflib  # only here, as it takes milliseconds

    own = {name for name in os.environ if name.startswith("OOMPH_")}
    for name in sorted(own - _misspelt):
        rest = name.removeprefix("OOMPH_")
        for meant in difflib.get_close_matches(rest, _FOR_USERS, 1, _ALIKE):
            _say(f"oomph: {name} is no variable of oomph: OOMPH_{meant} is")
    _misspelt.update(own)


def _refuse(reason: str) -> None:
    """Says that oomph is not in use; an error if it is required."""
    text = f"oomph is not in use: {reason}"
    if re.search(r"\brequired\s*:\s*yes\b", os.environ.get("OOMPH_CONF", "")):
        raise ImportError(text)
    if reason not in _why:
        _say(text)


def _say(text: str) -> None:
    if sys.stderr is not None:  # closed
        print(text, file=sys.stderr)


def _explained(error: ImportError) -> str:
    """What Python finds in place of the oomph that is installed."""
    import importlib.util  # only here, as it takes time

    try:
        spec = importlib.util.find_spec("oomph")
    except ValueError:
        spec = None  # what a program has put in its place says nothing of itself
    found = spec.origin if spec is not None else None
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(folder, "oomph")
    if found is not None and os.path.dirname(found) != installed:
        return (
            f"Python finds {found} in place of {installed}. Rename that file or "
            "folder, start from another folder, or take it out of PYTHONPATH"
        )
    if os.path.isfile(folder):
        return str(error)  # an archive, which oomph itself says
    return f"it cannot be imported ({error}): install it again"
