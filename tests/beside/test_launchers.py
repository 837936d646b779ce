"""What starts ranks: oomph is in each of them, and NCCL gives what gloo gives.

Ranks share a pipe, so each says all it has to say in one piece.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
SIMULATED = {
    "OOMPH_SIMULATE": "1GiB,devices=2,memory=values",
    "OOMPH_CONF": "required:yes",
}

ACCELERATE = """
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(cpu=not torch.cuda.is_available())
network = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
data = TensorDataset(torch.arange(256.0).view(32, 8) / 256, torch.ones(32, 1))
network, optimizer, loader = accelerator.prepare(
    network, optimizer, DataLoader(data, batch_size=4)
)
for x, y in loader:
    loss = (network(x) - y).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
losses = [f"{each:.6f}" for each in accelerator.gather(loss.detach()).tolist()]
ranks, who = gather_object([accelerator.process_index]), torch.cuda
print(f"rank {ranks} {losses} {who.get_allocator_backend()}\\n", end="")
accelerator.end_training()
"""

LIGHTNING = """
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        loss = (self.network(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

if __name__ == "__main__":
    lightning.seed_everything(0)
    data = TensorDataset(torch.arange(256.0).view(32, 8) / 256, torch.ones(32, 1))
    trainer = lightning.Trainer(
        accelerator="cuda" if torch.cuda.is_available() else "cpu", devices=2,
        strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(data, batch_size=4))
    loss = trainer.callback_metrics["loss"].item()
    print(f"rank {loss:.6f} {torch.cuda.get_allocator_backend()}\\n", end="")
"""

SPAWN = """
import sys
import torch
import torch.distributed as dist

def work(rank, place):
    is_cuda = torch.cuda.is_available()
    dist.init_process_group(
        "nccl" if is_cuda else "gloo", init_method=f"file://{place}",
        rank=rank, world_size=2,
    )
    x = torch.arange(3.0, device=f"cuda:{rank}" if is_cuda else "cpu") + rank
    dist.all_reduce(x)
    print(f"rank {x.tolist()} {torch.cuda.get_allocator_backend()}\\n", end="")
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(sys.argv[1],), nprocs=2)
"""

PROGRAMS = {
    "accelerate launch": (ACCELERATE, ["accelerate", "launch"]),
    "Lightning": (LIGHTNING, ["python"]),
    "torch.multiprocessing.spawn": (SPAWN, ["python"]),
}


def said(launcher: str, folder: Path, *, simulated: bool) -> list[str]:
    """What each rank says, without who gives out memory; that is checked."""
    program, (command, *words) = PROGRAMS[launcher]
    script = folder / "script.py"
    script.write_text(program)
    if command == "accelerate" and simulated:
        words += ["--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    elif command == "accelerate":  # which starts one process on the CPU
        command, words = "torchrun", ["--nproc-per-node", "2"]
    variables = SIMULATED if simulated else {}
    done = subprocess.run(
        [str(BIN / command), *words, str(script), str(folder / f"met{simulated}")],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    found = re.findall(r"rank (.*?) (oomph|native)", done.stdout)
    assert {who for _, who in found} == {"oomph" if simulated else "native"}, (
        done.stdout + done.stderr
    )
    return [text for text, _ in found]


@pytest.mark.parametrize("launcher", PROGRAMS)
def test_each_rank_has_oomph_and_what_gloo_gives(launcher, tmp_path):
    by_nccl = said(launcher, tmp_path, simulated=True)
    by_gloo = said(launcher, tmp_path, simulated=False)
    assert len(by_nccl) == 2
    assert by_nccl == by_gloo
