"""``oomph fit``: what a script does before it uses a GPU is done once for all runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from oomph.fitting.limit import Limit
from oomph.fitting.measuring import Place, Script, Way, measure
from oomph.fitting.process.launcher import Launcher
from oomph.fitting.process.record import Record


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as found:
        yield found


def run_of(
    launcher: Launcher, path: Path, way: Way, card: str, **variables: str
) -> Record:
    script = Script.of([str(path)], variables={"OMP_NUM_THREADS": "1", **variables})
    return measure(launcher, script, Place(card, way), Limit().is_set)


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
# What a script does before it uses a GPU, and what of that no fork would have.
HINDRANCES = {
    "import pyarrow": "",  # whose allocator likes a thread
    "import tempfile\nfile = tempfile.NamedTemporaryFile(); file.write(b'1')": "",
    "import tempfile\nfile = tempfile.TemporaryFile(); file.write(b'1')": "",
    "import tqdm\nfor step in tqdm.tqdm(range(3)): pass": "",
    "import multiprocessing\n"
    "lock, number = multiprocessing.Lock(), multiprocessing.Value('i', 7)\n"
    "count = multiprocessing.Semaphore(2); count.acquire(); lock.acquire()": "",
    "import multiprocessing\n"
    "pool = multiprocessing.Pool(1); pool.map(abs, [1])\n"
    "pool.terminate(); pool.join()\n"
    "held = [pool]; held.append(held); del pool, held": "",
    "import mmap, os, tempfile\n"
    "file = tempfile.NamedTemporaryFile(); os.truncate(file.fileno(), 4096)\n"
    "memory = mmap.mmap(file.fileno(), 4096)": "memory that other processes may use (",
    "import threading\n"
    "threading.Thread(target=threading.Event().wait, daemon=True, name='A').start()": (
        "other threads (A)"
    ),
    "import os\nos.environ['PYTORCH_ALLOC_CONF'] = 'backend:native'": (
        "settings of PyTorch's allocator, PYTORCH_ALLOC_CONF"
    ),
    "import subprocess\nsubprocess.Popen(['sleep', '60'])": "child processes",
    "import socket\nends = socket.socketpair()": (
        "what leads to other processes (socket:["
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("does", HINDRANCES)
def test_what_comes_before_the_gpu_is_run_once_where_nothing_hinders(
    does, launcher, tmp_path
):
    path, notes, begun = (tmp_path / name for name in ("begins.py", "notes", "begun"))
    notes.write_text("".join(f"{number}\n" for number in range(10000)))
    words = {"notes": str(notes), "begun": str(begun), "more": does}
    path.write_text(BEGINS.format(**words))
    cards = "4GiB,gpu=h100", "64MiB,context=62MiB,gpu=rtx4090"
    runs = [run_of(launcher, path, way, card) for way in Way for card in cards]
    ended = [run.output for run in runs if run.ending == "script"]
    read = f"read 10000 {random.Random(7).random()}\n"  # on from where the others began
    assert len(ended) > 4
    assert all(read in f"{output}\n" for output in ended)
    hindrance = HINDRANCES[does]
    assert (begun.read_text().count("1") == 1) == (not hindrance)
    assert any(run.hindrance.startswith(hindrance) for run in runs)
    assert any(run.hindrance for run in runs) == bool(hindrance)


SETS = {"of PyTorch": {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:4"}, "none": {}}


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("sets", SETS)
def test_figures_are_those_of_runs_from_the_start(sets, way, launcher, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    card = "1GiB,gpu=rtx4090,context=0,host=4GiB"
    waits, starts = (
        run_of(launcher, script, way, card, HOW=how, **SETS[sets])
        for how in ("waits", "starts")
    )
    assert starts.hindrance and not waits.hindrance
    assert "fails" in waits.output or way is Way.RESCUE
    backend = "native" if way in (Way.NATIVE, Way.EXPANDABLE) else "oomph"
    assert waits.output.split()[0] == backend
    own = {"unwritten_bytes": 0, "seconds": 0.0}
    figures = starts.as_dict() | {"hindrance": ""} | own
    assert waits.as_dict() | own == figures


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
