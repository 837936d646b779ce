"""Ranks of a job: each line of the log names its own, and each writes its own files."""

from __future__ import annotations

import json
import socket

import pytest
from oomph.base import ranks
from support import oomph, run

HOST = socket.gethostname()
LAUNCHERS = {
    "torchrun": ({"RANK": "3", "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "1"}, "rank 3"),
    "two machines": (
        {"RANK": "3", "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"},
        f"rank 3 on {HOST}",
    ),
    "mpirun": (
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        "rank 1",
    ),
    "srun": (
        {
            "SLURM_PROCID": "5",
            "SLURM_STEP_NUM_TASKS": "8",
            "SLURM_STEP_NUM_NODES": "2",
        },
        f"rank 5 on {HOST}",
    ),
    "sbatch": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, ""),
    "a world of one": ({"RANK": "0", "WORLD_SIZE": "1"}, ""),
    "torchrun in srun": (
        {"RANK": "7", "WORLD_SIZE": "8", "SLURM_PROCID": "1"},
        "rank 7",
    ),
    "nonsense": ({"RANK": "x", "WORLD_SIZE": "many"}, ""),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_rank_is_what_the_launcher_says(launcher, monkeypatch):
    said, wanted = LAUNCHERS[launcher]
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert ranks.label() == wanted
    assert (ranks.rank() is None) == (wanted == "")


RESCUED = """
import torch
kept = [torch.ones(40 << 18, device="cuda") for _ in range(30)]
"""


def test_each_line_of_a_rank_names_it():
    torchrun = LAUNCHERS["torchrun"][0]
    conf = "offload:on-oom,reserve:0"
    result = run(RESCUED, card="1GiB,context=0", conf=conf, **torchrun)
    said = result.err.splitlines()
    assert any(line.startswith("[rank 3] GPU 0 is out of memory") for line in said)
    assert all(line.startswith("[rank 3] ") for line in said if "GPU" in line), said


@pytest.mark.long
def test_tasks_of_srun_write_a_file_each(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import torch; kept = torch.ones(1 << 20, device='cuda')")
    for number in (0, 1):
        task = {"SLURM_PROCID": str(number), "SLURM_STEP_NUM_TASKS": "2"}
        words = ("--simulate", "1GiB", "--stats", tmp_path / "stats.json")
        assert oomph("run", *words, script, **task).code == 0
    for number in (0, 1):
        written = json.loads((tmp_path / f"stats.rank{number}.json").read_text())
        assert written["0"]["allocator"] == "oomph"
    assert not (tmp_path / "stats.json").exists()


WORKERS = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return index
if __name__ == "__main__":
    kept = torch.ones(1 << 20, device="cuda")
    loader = torch.utils.data.DataLoader(
        Data(), num_workers=1, multiprocessing_context="spawn"
    )
    list(loader)
"""


def test_workers_of_a_rank_write_nothing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WORKERS)
    words = ("--simulate", "1GiB", "--stats", tmp_path / "stats.json")
    result = oomph("run", *words, script, RANK="1", WORLD_SIZE="2")
    assert result.code == 0, result.said
    assert json.loads((tmp_path / "stats.rank1.json").read_text())
