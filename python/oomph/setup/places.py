"""Where things are that a command needs: the Python that is meant, temporary files."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import tempfile
from collections.abc import Iterator
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

    Some programs say where packages lie as they start: archives of PEX and shiv, and
    the scripts of Nix and buildout. They do so in this process alone. By ``PYTHONPATH``
    oomph may be found, but not its start-up file.

    Raises:
        ValueError: Python is started so that it does not read the variable.
    """
    package = Path(__file__).resolve().parents[1]
    folder = str(package.parent)
    if folder in map(os.path.realpath, _read_at_start()):
        return {}
    if sys.flags.ignore_environment:
        raise ValueError(
            f"the script would not find oomph, which lies in {folder}: install oomph "
            f"into {sys.prefix}, or start without Python's options -I and -E"
        )
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if folder not in map(os.path.realpath, paths):
        here = {os.getcwd(), os.path.dirname(os.path.abspath(sys.argv[0]))}
        found = [os.path.abspath(path) for path in sys.path if path]
        paths = [path for path in found if path not in here]
    starts = str(package / "setup" / "at_start")
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys([starts, *paths]))}


def _read_at_start() -> Iterator[str]:
    """The folders of packages that Python knows by itself, and those they name."""
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    for folder in folders:
        yield folder
        for file in Path(folder).glob("*.pth"):
            yield from file.read_text(errors="replace").splitlines()


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
