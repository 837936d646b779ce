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
from support import APART

BINS = [str(Path(sys.executable).parent), str(APART / "bin"), os.environ["PATH"]]
LAUNCHERS = {
    "PATH": os.pathsep.join(BINS),
    "PYTHONPATH": str(APART),
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",  # else Ray writes a token into the user's folder
    "RAY_USAGE_STATS_ENABLED": "0",
}
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

# The same training three times: by hand, by DeepSpeed, and by Ray.
NETWORK = """
import os
import sys
import torch

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )

def batches(rank, device):
    data = torch.arange(256.0).view(4, 2, 4, 8) / 256
    return data[:, rank].to(device)

def said(loss):
    return f"rank {loss.item():.6f} {torch.cuda.get_allocator_backend()}\\n"
"""

BY_HAND = f"""{NETWORK}
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in batches(torch.distributed.get_rank(), "cpu"):
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(said(loss), end="")
"""

DEEPSPEED = f"""{NETWORK}
import deepspeed
import oomph

model = network()
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    config={{
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,  # 1 where nothing is said
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {{"stage": 3}},  # whose buffers are larger than the card
    }},
)
for x in batches(engine.global_rank, engine.device):
    loss = (engine(x) - 1).square().mean()
    engine.backward(loss)
    engine.step()
assert oomph.stats(engine.local_rank)["rescues"] > 0
print(said(loss), end="")
"""

RAY = f"""{NETWORK}
import ray
from ray import train
from ray.train.torch import TorchTrainer, prepare_model

def work(folder):
    rank = train.get_context().get_world_rank()
    model = prepare_model(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches(rank, "cuda"):
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with open(f"{{folder}}/rank{{rank}}", "w") as out:
        out.write(said(loss))

if __name__ == "__main__":
    folder = sys.argv[1]
    os.mkdir(folder)
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False)
    TorchTrainer(
        work,
        train_loop_config=folder,
        scaling_config=train.ScalingConfig(num_workers=2, use_gpu=True),
    ).fit()
    for name in os.listdir(folder):
        print(open(f"{{folder}}/{{name}}").read(), end="")
"""

TORCHRUN = ["torchrun", "--nproc-per-node", "2"]
TWO_GPUS = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
PROGRAMS = {  # with NCCL on simulated cards, and with gloo on the CPU
    "accelerate launch": (
        (["accelerate", "launch", *TWO_GPUS], ACCELERATE),
        (TORCHRUN, ACCELERATE),  # accelerate starts one process there
    ),
    "Lightning": ((["python"], LIGHTNING), (["python"], LIGHTNING)),
    "torch.multiprocessing.spawn": ((["python"], SPAWN), (["python"], SPAWN)),
    "deepspeed": ((["deepspeed", "--num_gpus", "2"], DEEPSPEED), (TORCHRUN, BY_HAND)),
    "Ray Train": ((["python"], RAY), (TORCHRUN, BY_HAND)),
}


def said(command: list[str], program: str, folder: Path, **variables: str) -> list[str]:
    """What each rank says, in order, less who gives out memory; that is checked."""
    folder.mkdir()
    (folder / "script.py").write_text(program)
    done = subprocess.run(
        [*command, "script.py", str(folder / "met")],
        cwd=folder,
        env={**os.environ, **LAUNCHERS, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = re.findall(r"rank (.*?) (oomph|native)", done.stdout)
    assert {who for _, who in found} == {"oomph" if variables else "native"}, (
        done.stdout + done.stderr
    )
    return sorted(text for text, _ in found)


@pytest.mark.long
@pytest.mark.parametrize("launcher", PROGRAMS)
def test_each_rank_has_oomph_and_what_gloo_gives(launcher, tmp_path):
    by_nccl, by_gloo = PROGRAMS[launcher]
    found = said(*by_nccl, tmp_path / "nccl", **SIMULATED)
    assert len(found) == 2
    assert found == said(*by_gloo, tmp_path / "gloo")
