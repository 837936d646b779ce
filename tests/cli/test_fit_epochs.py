"""``oomph fit`` ends the epoch of the steps that it sees, and sees what follows."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from oomph import fit
from oomph.fitting import runs
from support import MIB, oomph

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = TensorDataset(torch.zeros(400, 256))

def train(loader):
    for x, in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

def evaluate(loader):
    with torch.no_grad():
        return torch.cat([model(x.cuda()).repeat(64, 1) for x, in loader])
"""
EPOCHS = f"""{TRAIN}
for epoch in range(3):
    train(DataLoader(data, 4, shuffle=True, num_workers=WORKERS))
    evaluate(DataLoader(data, 80, num_workers=WORKERS))
"""
PERSISTENT = f"""{TRAIN}
loader = DataLoader(data, 4, num_workers=1, persistent_workers=True)
for epoch in range(3):
    train(loader)
    evaluate(DataLoader(data, 80))
"""
RESTARTED = f"""{TRAIN}
batches = iter(DataLoader(data, 4))
for step in range(300):
    try:
        x, = next(batches)
    except StopIteration:
        evaluate(DataLoader(data, 80))
        batches = iter(DataLoader(data, 4))
        x, = next(batches)
    model(x.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ACCUMULATED = f"""{TRAIN}
for epoch in range(3):
    loader = DataLoader(data, 4)
    for i, (x,) in enumerate(loader):
        model(x.cuda()).sum().backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.step()  # what is left over
    evaluate(DataLoader(data, 80))
"""
ALONE = EPOCHS.replace("WORKERS", "0")
LAST = f"{TRAIN}\ntrain(DataLoader(data, 4))\nevaluate(DataLoader(data, 80))"
HELD = 2 * 400 * 64 * 256 * 4  # all outputs of an evaluation, in parts and whole
TRAINED = 66 * MIB  # what a step takes, with the workspace of cuBLAS
WITH_EVALUATION = {
    "epochs": (ALONE, "epoch"),
    "workers": (EPOCHS.replace("WORKERS", "2"), "epoch"),
    "workers that stay": (PERSISTENT, "epoch"),
    "restarted": (RESTARTED, "epoch"),
    "accumulated": (ACCUMULATED, "epoch"),
    "the last epoch": (LAST, "end"),
    "then an error": (f"{ALONE}    raise ValueError", "error"),
    "then an exit": (f"{ALONE}    raise SystemExit(3)", "error"),
}


def run(tmp_path: Path, code: str, *options: str) -> dict[str, Any]:
    """What the run without a limit shows."""
    path = tmp_path / "script.py"
    path.write_text(code)
    asked = ("fit", "--brief", "--json", "--gpu", "2GiB", *options, path)
    result = oomph(*asked, cwd=tmp_path)
    assert result.code == 0, result.said
    ways = json.loads(result.out)["cards"][0]["ways"]
    found, looked = ways["native"]["run"], ways["oomph"]["run"]
    assert found["ending"] == "steps"
    found["with_peak"] = found["steps"] - (looked["until"] - looked["enough"])
    if options:
        assert found["steps"] == 6
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_EVALUATION)
def test_an_evaluation_behind_the_steps_is_seen(tmp_path, name):
    code, later = WITH_EVALUATION[name]
    found = run(tmp_path, code, "--steps", "6")
    assert found["later"] == later
    assert HELD <= found["allocated_bytes"] - 64 * MIB <= HELD + 4 * MIB
    assert not found["is_cut"]


def test_a_loop_without_a_loader_ends_at_once(tmp_path):
    code = f"{TRAIN}\nfor _ in range(50): train([(torch.zeros(4, 256),)])\n"
    found = run(tmp_path, f"{code}evaluate(DataLoader(data, 80))", "--steps", "6")
    assert found["later"] == ""
    assert found["allocated_bytes"] < TRAINED


def test_steps_on_one_batch_end_soon(tmp_path):
    code = f"{TRAIN}\nbatch = next(iter(DataLoader(data, 4)))\n"
    found = run(tmp_path, f"{code}for _ in range(50): train([batch])", "--steps", "6")
    assert found["later"] in ("", "epoch")


def test_nothing_is_saved_behind_the_steps(tmp_path):
    saved = """
from safetensors.torch import save_file
for epoch in range(3):
    train(DataLoader(data, 4))
    torch.save(model.state_dict(), "last.pt")
    save_file(model.state_dict(), "last.safetensors")
    evaluate(DataLoader(data, 80))
"""
    found = run(tmp_path, f"{TRAIN}\n{saved}", "--steps", "6")
    assert found["later"] == "epoch"
    assert found["allocated_bytes"] > TRAINED + HELD / 2
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.long
def test_long_evaluations_are_ended_early(tmp_path):
    code = ALONE.replace("data, 80", "data, 4")
    found = run(tmp_path, code, "--steps", "6")
    assert (found["later"], found["is_cut"]) == ("epoch", True)
    seen = found["allocated_bytes"] - 64 * MIB
    assert HELD * 32 / 100 <= seen < HELD / 2


@pytest.mark.long
def test_what_takes_too_long_is_not_waited_for(tmp_path):
    code = f"{TRAIN}\ntrain(DataLoader(data, 4))\nimport time\ntime.sleep(1000)"
    found = run(tmp_path, code, "--steps", "6")
    assert found["later"] in ("", "too long")
    assert found["allocated_bytes"] < TRAINED


@pytest.mark.long
def test_memory_that_ends_in_an_evaluation_is_too_little(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(ALONE)
    card = "90MiB,context=0,host=1GiB"
    result = oomph("fit", "--brief", "--json", "--gpu", card, path, cwd=tmp_path)
    assert result.code == 0, result.said
    ways = json.loads(result.out)["cards"][0]["ways"]
    assert [way for way, found in ways.items() if found["fits"]] == ["rescue"]


# ---- How many steps are seen


@pytest.mark.long
def test_what_a_later_step_needs_is_seen_unless_so_many_are_asked_for(tmp_path):
    code = f"""{TRAIN}
for step in range(60):
    train([(torch.zeros(4, 256),)])
    if step % 20 == 19:
        evaluate(DataLoader(data, 80))
"""
    found = run(tmp_path, code)
    assert HELD <= found["allocated_bytes"] - 64 * MIB <= HELD + 4 * MIB
    assert found["with_peak"] == 21  # the first that ends with the peak
    found = run(tmp_path, code, "--steps", "6")
    assert found["allocated_bytes"] < TRAINED


@pytest.mark.long
def test_an_optimizer_that_takes_over_is_seen(tmp_path):
    code = f"""{TRAIN}
for _ in range(10): train([(torch.zeros(4, 256),)])
large = nn.Linear(2048, 4096).cuda()
optimizer = torch.optim.AdamW(large.parameters())
for _ in range(10):
    large(torch.zeros(4, 2048, device="cuda")).sum().backward()
    optimizer.step()
"""
    found = run(tmp_path, code)
    assert found["allocated_bytes"] > 64 * MIB + 4 * 2048 * 4096 * 4


@pytest.mark.long
def test_memory_that_rises_to_the_last_step_is_reported(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(f"""{TRAIN}
import time
kept = []
for step in range(100000):
    train([(torch.zeros(4, 256),)])
    kept.append(torch.zeros(16 << 18, device="cuda"))
    time.sleep(0.05)
""")
    result = oomph("fit", "--brief", "--gpu", "2GiB", path)
    assert "later ones may need even more" in result.out, result.said
    assert "steps, for as long as the answers took, and needed ever more" in result.out


# ---- What runs beside


SPAWNED = """
import torch
import torch.multiprocessing as mp

def train(rank):
    w = torch.nn.Parameter(torch.zeros((rank + 1) << 18, device="cuda"))
    optimizer = torch.optim.SGD([w], 0.1)
    for step in range(100):
        w.sum().backward()
        optimizer.step()

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""
KILLED = """
import os, signal, subprocess, sys
child = "import os, torch; torch.zeros(8, device='cuda'); os.kill(os.getpid(), 9)"
subprocess.run([sys.executable, "-c", child])
"""


@pytest.mark.long
def test_processes_that_a_script_spawns_are_seen(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SPAWNED)
    result = oomph("fit", "--brief", "--json", "--gpu", "1GiB", path)
    assert result.code == 0, result.said
    ways = json.loads(result.out)["cards"][0]["ways"]
    for name, way in ways.items():
        found = way["run"]
        assert (found["processes"], found["unseen"]) == (2, 0)
        if name in ("oomph", "rescue"):  # the first run answers, which has looked on
            assert 6 <= found["steps"] <= 100
        else:
            assert (found["ending"], found["steps"]) == ("steps", 6)
        assert 4 * MIB <= found["allocated_bytes"] < 5 * MIB  # of the larger one


@pytest.mark.long
def test_a_spawned_process_that_needs_too_much_does_not_fit(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SPAWNED.replace("<< 18", "<< 27"))  # 2 GiB with gradients
    result = oomph("fit", "--brief", "--with", "native", "--gpu", "1536MiB", path)
    assert result.code == 1, result.said


@pytest.mark.long
def test_processes_of_which_nothing_is_known_are_no_answer(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(KILLED)
    result = oomph("fit", "--brief", "--gpu", "1GiB", path)
    assert result.code == 3
    assert "Processes that it started did (1), but they left no record" in result.err
    path.write_text(f"{KILLED}\nimport torch; torch.zeros(1 << 20, device='cuda')")
    result = oomph("fit", "--brief", "--gpu", "1GiB", path)
    assert "Other processes that the script started used a GPU, too" in result.out


@pytest.mark.long
def test_a_script_that_wants_a_port_is_run_alone(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "script.py"
    path.write_text(f"""
import socket, time, torch
open_port = socket.socket()
open_port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
open_port.bind(("127.0.0.1", {port}))
open_port.listen()
torch.cuda.mem_get_info()  # so each card is asked
time.sleep(1)
torch.zeros(1 << 20, device="cuda")
""")
    result = oomph("fit", "--brief", "--gpu", "1GiB,2GiB", path)
    assert result.code == 0, result.said


SLOW = """
import os, time, torch
w = torch.nn.Parameter(torch.zeros(300 << 18, device="cuda"))
if "offload:auto" in os.environ.get("OOMPH_CONF", "") and SLEEPS:
    time.sleep(100)
"""


@pytest.mark.long
@pytest.mark.parametrize("sleeps", [False, True])
def test_a_rescue_that_takes_too_long_is_given_up(tmp_path, monkeypatch, sleeps):
    monkeypatch.setattr(runs, "_PATIENCE_S", 2.0)
    path = tmp_path / "script.py"
    path.write_text(SLOW.replace("SLEEPS", str(sleeps)))
    card = "256MiB,context=0,host=1GiB"
    found = fit([str(path)], card, brief=True)
    answer = found.on(card)
    assert (answer.fits, answer.gave_up) == (not sleeps, sleeps)
    assert ("too slow" in found.table()) == sleeps
