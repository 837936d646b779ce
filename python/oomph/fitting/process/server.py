"""Starts scripts on simulated cards: forks of one process that has imported PyTorch.

Importing PyTorch takes two seconds of a core, and a question takes a dozen runs. Each
line of standard input asks for a fork: JSON, as :func:`oomph.fitting.measuring.measure`
makes it. Lines of standard output answer, as JSON: ``[number, "pid", pid]`` for the
first, second, … request, and ``[number, "code", code, max_rss_bytes]`` once it ended.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
import weakref

from oomph import simulate
from oomph.fitting.process.forking import Request, Server, write_to

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def preload() -> None:
    """Imports PyTorch for the simulated GPU; nothing of it is used yet.

    Collections in a fork leave alone what is there now: to look at it would copy its
    pages, which takes longer than all else that a short script does. Nor does a fork
    take apart what was imported here when it ends: 50 ms of a core.
    """
    simulate.preload()
    asked = os.environ.get(_AUTOLOAD)
    os.environ[_AUTOLOAD] = "0"  # oomph is installed in each fork
    import torch._dynamo  # noqa: F401 - as whoever makes an optimizer

    del os.environ[_AUTOLOAD]
    if asked is not None:
        os.environ[_AUTOLOAD] = asked
    gc.freeze()
    for finalizer in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        finalizer.atexit = False


def become(request: Request) -> int:
    """Runs what is asked for in this fork; gives its exit code."""
    write_to(request["output"])
    may_wait = request["socket"] is not None
    os.environ.update(request["first_environment" if may_wait else "environment"])
    simulate.load(os.environ[simulate.VARIABLE])
    from oomph.fitting.process import pretrained, program, waiting, weights
    from oomph.setup import environment

    environment.apply()
    card = simulate.card_in_use()
    if not request["writes_weights"] and card is not None and not card.has_values:
        weights.leave_out()
    pretrained.arrange(fetches=request["writes_weights"])
    watch = program.Watch()
    waiting.place(watch, request)
    if may_wait:
        waiting.arrange(request, watch)
    else:  # oomph has called the driver, but the script may still choose devices
        simulate.before_use(lambda: waiting.begin_use(request, watch))
    return program.run(
        watch, request["module"], request["target"], request["arguments"]
    )


def leave(code: int) -> None:
    """Ends this process as Python does, but for a second of taking all apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def main() -> None:
    """Serves; in a fork, runs what was asked for."""
    preload()
    request = Server(0, 1, os.fork).serve()
    if request is not None:
        leave(become(request))


if __name__ == "__main__":
    main()
