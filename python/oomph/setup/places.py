"""Where things are that a command needs: the Python that is meant, temporary files."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import tempfile
from pathlib import Path


def other_environment() -> str | None:
    """The folder of the environment that is active, if it is not this Python's."""
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if not active or os.path.realpath(active) == os.path.realpath(sys.prefix):
        return None
    return active


def name_other() -> None:
    """Says that the script will not find the packages of the active environment.

    Raises:
        ValueError: PyTorch is not among those that it does find.
    """
    active = other_environment()
    if active is None:
        return
    text = (
        f"this oomph runs {sys.executable}, not the Python of the active environment, "
        f"{active}: install oomph there"
    )
    if importlib.util.find_spec("torch") is None:
        raise ValueError(text)
    if sys.stderr is not None:
        print(f"oomph: {text}", file=sys.stderr)


def search_path() -> dict[str, str]:
    """The variable with which another Python finds oomph, if it would not find it.

    Some programs say where packages lie as they start: archives of PEX, and the scripts
    of Nix and buildout. They do so in this process alone.

    Raises:
        ValueError: Python is told not to read the variable.
    """
    folder = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [*site.getsitepackages(), *given]
    if site.ENABLE_USER_SITE:
        own.append(site.getusersitepackages())
    if folder in map(os.path.realpath, own):
        return {}
    if sys.flags.ignore_environment:
        raise ValueError(
            f"the script would not find oomph, which lies in {folder}: install oomph "
            f"into {sys.prefix}, or start without Python's options -I and -E"
        )
    here = {os.getcwd(), os.path.dirname(os.path.abspath(sys.argv[0]))}
    found = [os.path.abspath(path) for path in sys.path if path]
    return {"PYTHONPATH": os.pathsep.join(p for p in found if p not in here)}


def temporary_folder(command: str) -> tempfile.TemporaryDirectory[str]:
    """A folder that a command removes in the end.

    Raises:
        ValueError: There is no place for one.
    """
    try:
        return tempfile.TemporaryDirectory(prefix=f"oomph-{command}-")
    except FileNotFoundError:
        raise ValueError(
            "there is no folder for temporary files that can be written: set TMPDIR "
            "to one"
        ) from None
