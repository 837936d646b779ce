"""``oomph fit``: what a script does before it uses a GPU is done once for all runs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from support import oomph


def cards_of(*arguments: str | Path, **variables: str) -> list[dict]:
    """The answers for each card, as data."""
    result = oomph("fit", "--json", *arguments, **variables)
    assert result.code in (0, 1), result.said
    return json.loads(result.out)["cards"]


BEGINS = """
import random, sys, torch
random.seed(7)
notes = open({notes!r})
{more}
print(torch.cuda.device_count(), file=open({begun!r}, "a"))
rows = [next(notes)]
x = torch.empty(1 << 20, device="cuda")
print("read", len([*rows, *notes]), random.random(), flush=True)
"""
ALONE = {
    "alone": "",
    "alone, with PyArrow": "import pyarrow",  # whose allocator likes a thread
    "with a thread": "import threading\n"
    "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "with settings": "import os\nos.environ['PYTORCH_ALLOC_CONF'] = 'backend:native'",
    "with a child": "import subprocess\nsubprocess.Popen(['sleep', '60'])",
}


@pytest.mark.parametrize("how", ALONE)
def test_what_comes_before_the_gpu_is_run_once_where_nothing_else_runs(how, tmp_path):
    path, notes, begun = (tmp_path / name for name in ("begins.py", "notes", "begun"))
    notes.write_text("".join(f"{number}\n" for number in range(10000)))
    words = {"notes": str(notes), "begun": str(begun), "more": ALONE[how]}
    path.write_text(BEGINS.format(**words))
    cards = cards_of("--gpu", "64MiB,context=62MiB,gpu=rtx4090,1GiB,gpu=h100", path)
    runs = [way["run"] for card in cards for way in card["ways"].values()]
    ended = [run["output"] for run in runs if run["ending"] == "script"]
    said = f"read 10000 {random.Random(7).random()}\n"  # on from where the others began
    assert ended and all(said in f"{output}\n" for output in ended)
    assert (begun.read_text().count("1") == 1) == how.startswith("alone")



SETS = {"of PyTorch": {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:4"}, "none": {}}


@pytest.mark.parametrize("sets", SETS)
def test_figures_are_those_of_runs_from_the_start(sets, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    card = "1GiB,gpu=rtx4090,context=0"
    waits, starts = (
        cards_of("--gpu", card, script, HOW=how, **SETS[sets])[0]["ways"]
        for how in ("waits", "starts")
    )
    for way, found in waits.items():
        assert "fails" in found["run"]["output"] or way == "rescue"
        for figure in {*found["run"]} - {"unwritten_bytes"}:
            assert found["run"][figure] == starts[way]["run"][figure], (way, figure)
    backends = [found["run"]["output"].split()[0] for found in waits.values()]
    assert backends == ["native", "native", "oomph", "oomph"]


TRAIN = """
import os, threading, torch
from torch import nn

if os.environ["HOW"] == "starts":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)])
optimizer = torch.optim.Adam(model.to("cuda").parameters())
print(torch.cuda.get_allocator_backend())
for batch in (4096, 40000, 20000, 8192):
    try:
        model(torch.randn(batch, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
    except torch.OutOfMemoryError:
        print(batch, "fails")
    optimizer.zero_grad()
"""
