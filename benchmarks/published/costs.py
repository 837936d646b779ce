"""Tells what a call of each row costs, as measure.py tells how long it takes.

    OOMPH_SIMULATE=h100 python benchmarks/published/costs.py < rows.json

For each row, standard output gets a line: the steps of the call as the simulated driver
traces them. fit.py runs them again without PyTorch.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from forks import Request, serve
from measure import answers, call_of, case_of

Step = dict[str, Any]
MOVES = {"cuMemcpyAsync": "copy", "cuMemsetD8Async": "fill"}


def steps_of(row: Request) -> list[Step]:
    """What a row does once it has run before."""
    case = case_of(row)
    call = call_of(case, row)
    call()
    for leaf in case.leaves:
        leaf.grad = None
    driver = ctypes.CDLL("libcuda.so.1")  # the simulated one, which is there already
    with tempfile.NamedTemporaryFile() as file:
        driver.oomph_sim_log(file.name.encode())
        call()
        driver.oomph_sim_log(None)
        return [*map(step_of, Path(file.name).read_text().splitlines())]


def step_of(line: str) -> Step:
    """Of a line of the trace."""
    if line == "dispatched":
        return {"kind": "dispatch"}
    if line.startswith("cost: "):
        return {"kind": "cost", **json.loads(line.removeprefix("cost: "))}
    name, _, rest = line.partition("(")
    if name.startswith("cuLaunch"):
        return {"kind": "kernel"}
    if name in MOVES:
        return {"kind": MOVES[name], "bytes": int(rest.split(", ")[2])}
    return {"kind": "call"}


if __name__ == "__main__":
    sys.exit(serve(lambda row: row["kernel"], partial(answers, steps_of)))
