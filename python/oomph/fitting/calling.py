"""A function that stands in for a script: it is called in a process of its own."""

from __future__ import annotations

import base64
import os
import pickle
import sys
from collections.abc import Callable
from multiprocessing import process, spawn
from typing import Any


def words_of(function: Callable[[], object]) -> list[str]:
    """Gives the words of a command that calls a function, ``-m`` and what follows.

    Args:
        function: One that a module has under its name, or a ``functools.partial`` of
            one, whose arguments can be pickled.

    Raises:
        ValueError: It cannot be found from another process, or this is one that imports
            what was started, to find it.
    """
    if getattr(process.current_process(), "_inheriting", False):
        raise ValueError(
            "oomph.fit imports the program that calls it, which asks again: write "
            "if __name__ == '__main__': before the call"
        )
    try:
        pickled = pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{function!r} cannot be called in a process of its own ({error}): give a "
            "function that stands in a module under its name, or functools.partial of "
            "one with arguments that can be pickled"
        ) from None
    here = {"sys_path": [*sys.path], "sys_argv": sys.argv, "dir": os.getcwd()}
    if b"__main__" in pickled:  # what was started is imported there, too
        here.update(_main())
    both = pickle.dumps((here, pickled))
    return ["-m", __name__, base64.b64encode(both).decode()]


def _main() -> dict[str, str]:
    """What was started, as multiprocessing describes it to a process that it starts."""
    started = sys.modules["__main__"]
    if started.__spec__ is not None:
        return {"init_main_from_name": started.__spec__.name}
    path = getattr(started, "__file__", None)
    return {} if path is None else {"init_main_from_path": os.path.abspath(path)}


def main(text: str) -> None:
    """Calls what :func:`words_of` was given."""
    here, pickled = pickle.loads(base64.b64decode(text))
    myself: Any = process.current_process()
    myself._inheriting = True  # so that a program without a guard cannot ask again
    try:
        spawn.prepare(here)
        function = pickle.loads(pickled)
    finally:
        del myself._inheriting
    function()


if __name__ == "__main__":
    main(sys.argv[1])
