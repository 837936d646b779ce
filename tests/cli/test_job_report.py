"""``oomph report``: what the ranks of a job have left, said once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import execute, oomph

TRAIN = """
import torch
rows = [torch.zeros(SIZE << 18, device="cuda") for _ in range(4)]
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
kept = []
for _ in range(STEPS):
    optimizer.zero_grad()
    out = model(torch.ones(1024, 256, device="cuda"))
    out.sum().backward()
    KEEP
    optimizer.step()
"""
ERROR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has "
    "a total capacity of 79.11 GiB of which 1.00 GiB is free. Including non-PyTorch "
    "memory, this process has 78.11 GiB memory in use. Of the allocated memory 76.00 "
    "GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated."
    "\n"
)


def train(folder: Path, ranks: int, steps: int = 3, keep: str = "") -> None:
    """Has ranks leave their statistics, of which the second takes most."""
    for rank in range(ranks):
        script = folder.parent / "train.py"
        size = "64" if rank == 1 else "16"
        text = TRAIN.replace("SIZE", size).replace("STEPS", str(steps))
        script.write_text(text.replace("KEEP", keep or "pass"))
        words = ["--simulate", "1GiB,context=0", "--stats", folder / "stats.json"]
        leaks = ["--set", "leaks:count"] if keep else []
        task = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
        assert oomph("run", *words, *leaks, script, **task).code == 0


@pytest.mark.long
def test_statistics_of_ranks_stand_side_by_side(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    train(folder, 3)
    said = oomph("report", folder)
    assert said.code == 0, said.err
    first, *rows = said.out.splitlines()
    assert first == f"{folder}: statistics of ranks 0 to 2"
    reported = dict(row.strip().split("  ", 1) for row in rows)
    assert reported["steps"].strip() == "3"
    files = [folder / f"stats.rank{rank}.json" for rank in range(3)]
    peaks = [
        json.loads(file.read_text())["0"]["allocated_bytes.all.peak"] for file in files
    ]
    assert peaks[0] == peaks[2] == peaks[1] - (4 * 48 << 20)
    mib = [f"{peak / 2**20:.2f} MiB" for peak in peaks]
    wanted = f"{mib[0]} (rank 0) to {mib[1]} (rank 1), median {mib[0]}"
    assert reported["in tensors, peak"].strip() == wanted
    assert "fell back to the host" not in said.out  # nowhere
    data = json.loads(oomph("report", "--json", folder).out)
    assert [each["allocated_bytes.all.peak"] for each in data["statistics"]] == peaks


def test_a_rank_that_left_none_is_named(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    train(folder, 3, steps=0)
    (folder / "stats.rank1.json").unlink()
    out = oomph("report", folder).out
    assert "statistics of ranks 0, 2" in out
    assert "rank 1: killed, or still running" in out


def test_a_leak_of_all_ranks_is_said_once(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    train(folder, 2, steps=30, keep="kept.append(out)")
    out = oomph("report", folder).out
    (line,) = [line for line in out.splitlines() if "outputs retained" in line]
    assert line.startswith("ranks 0, 1: outputs retained at ")
    assert "train.py:11, 1.00 MiB per step (leaks)" in line


@pytest.mark.parametrize("named", ["{}/stderr.log", "train.rank{}.log"])
def test_an_error_of_all_ranks_is_said_once(tmp_path, named):
    for rank in range(12):
        log = tmp_path / named.format(rank)
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"step {rank}\nlast line before it\n{ERROR}" + "more\n" * 50)
    said = oomph("report", tmp_path)
    assert said.code == 0
    (title,) = [line for line in said.out.splitlines() if "CUDA out of memory" in line]
    first = named.format(0)
    assert title.startswith(f"{first}:3: "), title
    assert "ranks 0 to 11, 12 times, last at " + named.format(11) + ":3" in title
    assert "last line before it" not in said.out


def test_ranks_whose_errors_differ_are_told_apart(tmp_path):
    for rank in range(4):
        text = ERROR.replace("2.00 GiB", "4.00 GiB") if rank == 3 else ERROR
        (tmp_path / f"rank{rank}.log").write_text(text)
    out = oomph("report", tmp_path).out
    titles = [line for line in out.splitlines() if "CUDA out of memory" in line]
    assert ["ranks 0 to 2" in titles[0], "rank 3" in titles[1]] == [True, True]
    assert titles[1].startswith("rank3.log:1: ")


def test_a_folder_without_anything_of_a_job_says_what_it_should_have(tmp_path):
    (tmp_path / "config.json").write_text('{"0": {"a": 1}, "lr": 0.1}')
    (tmp_path / "weights.txt").write_bytes(b"\x00\x01" * 100)
    said = oomph("report", tmp_path)
    assert said.code == 2
    assert f"oomph: {tmp_path} has no statistics (oomph run --stats " in said.err
    said = oomph("report", tmp_path / "nowhere")
    assert said.err == f"oomph: there is no folder {tmp_path / 'nowhere'}\n"


def test_statistics_of_pytorchs_allocator_are_read_as_well(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import torch; kept = torch.ones(1 << 20, device='cuda')")
    words = ("--simulate", "1GiB", "--allocator", "native")
    assert oomph("run", *words, "--stats", tmp_path / "a.json", script).code == 0
    out = oomph("report", tmp_path).out
    assert "statistics of a.json" in out
    assert "4.00 MiB" in out


def test_a_job_of_torchrun_is_reported_by_what_its_ranks_left(tmp_path):
    script, folder = tmp_path / "train.py", tmp_path / "job"
    script.write_text(
        """
import os, torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
try:
    torch.empty(2 << 30, device="cuda")
except torch.OutOfMemoryError:
    import traceback
    traceback.print_exc()
"""
    )
    torchrun = Path(sys.executable).with_name("torchrun")
    ranks = ("--nproc-per-node", "2", "--log-dir", folder, "--redirects", "3")
    run = (Path(sys.executable).with_name("oomph"), "run", "--set", "offload:off")
    what = ("--simulate", "1GiB,devices=2", "--stats", folder / "stats.json", script)
    folder.mkdir()
    done = execute(torchrun, *ranks, "--no-python", *run, *what)
    assert done.code == 0, done.err
    out = oomph("report", folder).out
    assert f"{folder}: statistics of ranks 0, 1" in out
    assert "64.00 MiB" in out
    (title,) = [line for line in out.splitlines() if "CUDA out of memory" in line]
    assert "ranks 0, 1, 2 times" in title, out
    assert title.split(":")[0].endswith("/0/stderr.log"), out
    assert "train.py:6" in out
