"""Looks at a process that a script starts, other than by a fork, as at the script.

``torch.multiprocessing.spawn`` and launchers start Python anew. Such a process learns
from the folder of the run what is asked for, and leaves its record there as a fork of
the script does.
"""

from __future__ import annotations

import atexit
import json
import os
from pathlib import Path
from typing import Any

from oomph import simulate
from oomph.fitting.process.extent import Extent
from oomph.fitting.process.record import CHILD
from oomph.simulate import users

_ASKED = "asked.json"  # in the folder of a run


def tell(record: Path, asked: dict[str, Any]) -> None:
    """Tells processes that a script may start what is asked for.

    Args:
        record: Where the script's record will be.
        asked: Arguments of the watch's :meth:`place`, and more.
    """
    draft = record.with_name(f"{os.getpid()}.draft")
    draft.write_text(json.dumps(asked))
    draft.rename(record.with_name(_ASKED))


def look() -> None:
    """Looks at this process from now on, if it is asked about what has started it.

    Called at the end of ``import torch``.
    """
    path = Path(os.environ[users.VARIABLE], _ASKED)
    try:
        asked = json.loads(path.read_text())
    except (OSError, ValueError):
        return  # nobody asks any more
    from oomph.fitting.process import pretrained, program, weights

    card = simulate.card_in_use()
    fetches = asked.pop("writes_weights")
    if not fetches and card is not None and not card.has_values:
        weights.leave_out()
    pretrained.arrange(fetches)
    watch = program.Watch()
    watch.is_child = True
    extent = Extent(**asked.pop("extent"))
    watch.place(path.with_name(f"{os.getpid()}{CHILD}"), extent, **asked)
    watch.begin()
    watch.keep_files()
    atexit.register(watch.end)
