"""Requests on standard input, each group of them served in a fork of this process.

What a process did before shows in its memory, and importing PyTorch takes seconds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

Request = dict[str, Any]


def training_of(request: Request) -> Request:
    """What requests of one training have in common: all but the figure."""
    return {key: value for key, value in request.items() if key != "figure"}


def serve(
    group_of: Callable[[Request], object],
    answers: Callable[[Sequence[Request]], Iterator[Any]],
) -> int:
    """Prints a line for each request, in their order; gives the exit code.

    Args:
        group_of: What requests of one group have in common; they stand together.
        answers: Called in a fork for a group, before which CUDA is not used.
    """
    for _, requests in groupby(json.load(sys.stdin), key=group_of):
        child = os.fork()
        if child == 0:
            for answer in answers([*requests]):
                print(json.dumps(answer), flush=True)
            return 0
        if os.waitpid(child, 0)[1] != 0:
            return 1
    return 0
