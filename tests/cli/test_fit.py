"""``oomph fit``: what it says of a card is what a run on that card shows."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from oomph.fitting import cards, progress, varying
from oomph.fitting.measuring import Script, Way
from oomph.fitting.process.launcher import Event, Launcher
from support import GIB, MIB, Result, execute, oomph, run

WAYS = ("native", "expandable", "oomph", "rescue")
RESERVE = ["--set", "reserve:0"]
SETTINGS = {"oomph": ["offload:off"], "rescue": ["host_limit:256MiB"]}
TRAIN = """
import argparse, torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--steps", type=int, default=5)
options = parser.parse_args()
layers = [part for _ in range(6) for part in (nn.Linear(1024, 1024), nn.GELU())]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(options.steps):
    loss = model(torch.randn(options.batch, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, flush=True)
"""


def fit(*arguments: str | Path, **options: object) -> Result:
    return oomph("fit", "--brief", *arguments, **options)


def answer(*arguments: str | Path, brief: bool = True) -> dict:
    result = oomph("fit", *["--brief"] * brief, "--json", *arguments)
    assert result.code in (0, 1), result.said
    return json.loads(result.out)


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def comes_through(way: str, card: str, *script: str | Path) -> bool:
    """Whether a script ends well on a card, by running it there."""
    allocator = way if way in ("native", "expandable") else "oomph"
    chosen = [*RESERVE, "--set", *SETTINGS[way]] if way in SETTINGS else []
    result = oomph(
        "run", "--simulate", card, "--allocator", allocator, *chosen, *script
    )
    assert result.code == 0 or "out of memory" in result.err, result.said
    return result.code == 0


@pytest.mark.long
def test_each_answer_is_that_of_a_run_on_the_card(train):
    keys = "gpu=rtx4090,context=64MiB,host=512MiB"
    batch = ["--batch", "8192"]
    roomy = answer("--gpu", f"8GiB,{keys}", train, *batch)["cards"][0]["ways"]
    needed = roomy["native"]["run"]["reserved_bytes"]
    sizes = [200 * MIB, *(needed + more * MIB for more in (-32, 62, 64))]
    names = [f"{size},{keys}" for size in sizes]
    found = answer(*RESERVE, "--gpu", ",".join(names), train, *batch)
    assert [card["card"] for card in found["cards"]] == names
    fits = {(c["card"], w): c["ways"][w]["fits"] for c in found["cards"] for w in WAYS}
    seen = {at: comes_through(at[1], at[0], train, *batch) for at in fits}
    assert fits == seen
    for way in WAYS:
        assert {fits[name, way] for name in names} == {True, False}, way


@pytest.mark.long
@pytest.mark.parametrize("way", [Way.NATIVE, Way.OOMPH])
def test_the_largest_value_fits_and_the_next_does_not(way, train):
    (card,) = cards.targets("400MiB,context=64MiB", "512MiB")
    script = Script(str(train), ("--batch", "7"), settings="reserve:0")
    option = varying.parse("--batch=2000..3200")
    with Launcher() as launcher:
        search = varying.Search(launcher, script, option, progress.silent(), card)
        largest = search.largest(card, way).value
    name, value = way.name.lower(), int(largest)
    assert 2000 < value < 3200
    assert comes_through(name, card.text, train, "--batch", largest)
    assert not comes_through(name, card.text, train, "--batch", str(value + 1))


@pytest.mark.long
def test_a_card_of_the_environment_is_not_that_of_the_script(tmp_path):
    path = tmp_path / "asks.py"
    path.write_text(
        "import torch\n"
        "print(torch.cuda.get_device_properties(0).total_memory)\n"
        "x = torch.empty(1, device='cuda')\n"
        "torch.cuda.mem_get_info()\n"
    )
    result = fit("--gpu", "3GiB", "--json", path, card="2GiB")
    assert result.code == 0, result.said
    run = json.loads(result.out)["cards"][0]["ways"]["native"]["run"]
    assert run["output"] == str(3 * GIB)


@pytest.mark.long
def test_a_list_and_a_variable_of_the_environment_are_varied(tmp_path):
    path = tmp_path / "env.py"
    path.write_text(
        "import os, torch\n"
        "x = torch.empty(int(os.environ['SIZE']) << 20, dtype=torch.uint8).cuda()\n"
    )
    words = [*RESERVE, "--gpu", "200MiB,context=0,host=16MiB", "--vary"]
    result = fit(*words, "SIZE=100,150,250", path)
    assert result.code == 0, result.said
    assert "The largest SIZE that fits:" in result.out
    assert result.out.splitlines()[2].split()[2:] == ["MiB"] + ["150"] * 4


@pytest.mark.long
def test_the_table_says_what_holds_the_peak_and_what_would_help(train):
    card = ["--gpu", "400MiB,gpu=rtx4090,context=0"]
    result = oomph("fit", *RESERVE, *card, train, "--batch", "8192")
    assert result.code == 0, result.said
    table, more = result.out.split("\n\n", 1)
    assert " no  " in table
    assert " on the host" in table
    assert "activations saved for backward" in more
    assert "without offload, these would save memory:" in more
    assert "batch 8192 -> " in more
    assert "was ended" not in more  # it has five steps
    brief = fit(*RESERVE, *card, train, "--batch", "8192").out.split("\n\n")
    rows = [[row.split() for row in each.splitlines()] for each in (brief[0], table)]
    assert rows[0] == rows[1][:-1]  # without the smallest
    assert brief[1].startswith("Without a limit") and len(brief) == 2


@pytest.mark.long
def test_a_script_that_is_ended_may_need_more_later(train):
    result = fit("--gpu", "1GiB", "--steps", "3", train, "--steps", "9")
    assert result.code == 0, result.said
    said = "The script was stopped after 3 steps of its optimizers (--steps): the run "
    more = "does not cover what comes later, such as an evaluation, nor memory that "
    more += "grows over time."
    assert f"{said}{more}" in result.out


@pytest.mark.long
def test_where_nothing_helps_it_is_said(tmp_path):
    path = tmp_path / "holds.py"
    path.write_text(
        "import torch\n"
        "types = {'device': 'cuda', 'dtype': torch.bfloat16}\n"
        "model = torch.nn.Linear(4096, 4096, bias=False, **types)\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(2):\n"
        "    model(torch.ones(1, 4096, **types)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    card = "50MiB,context=0,host=1GiB"
    result = oomph("fit", *RESERVE, "--gpu", card, path)
    said = f"On {card} without offload, oomph knows nothing that would save memory."
    assert said in result.out, result.said
    *_, smallest = re.search(r"^smallest .* ([\d.]+) MiB$", result.out, re.M).groups()
    assert float(smallest) <= 50 + 160 / 8  # as it fits that card


@pytest.mark.long
def test_what_is_known_is_said_before_all_is(tmp_path):
    """The search for the smallest card goes on for ever: what came before is seen."""
    path, said = tmp_path / "stuck.py", tmp_path / "said"
    path.write_text(
        "import torch\n"
        "x = torch.empty(100 << 20, dtype=torch.uint8, device='cuda')\n"
        "free = torch.cuda.mem_get_info()[0]\n"
        "while free < 1 << 30: pass\n"
    )
    with open(said, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "oomph", "fit", "--gpu", "4GiB", path],
            stderr=file,
            start_new_session=True,
        )
    known = [f"oomph: 4GiB is large enough ({way.value})" for way in Way]
    deadline = time.monotonic() + 120
    while not all(line in said.read_text() for line in known):
        assert process.poll() is None and time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)
    process.terminate()
    assert process.wait(60) == 143
    assert "the script holds 100.00 MiB at its peak" in said.read_text()


@pytest.mark.long
def test_a_script_chooses_devices_until_it_uses_one(tmp_path):
    path = tmp_path / "chooses.py"
    path.write_text(
        "import os, sys\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = sys.argv[1]\n"
        "import torch\n"
        "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "x = torch.ones(1 << 20, device=device)\n"
        "print(x.device.type, torch.cuda.device_count())\n"
    )
    for chosen, said in (("", "cpu 0"), ("1", "cuda 1")):
        words = ["--gpu", "1GiB,devices=2", path, chosen]
        ways = answer(*words)["cards"][0]["ways"]
        assert {way["run"]["output"] for way in ways.values()} == {said}
    assert "allocated nothing on a GPU" in fit("--gpu", "1GiB", path, "").out


HALVES = """
import torch

size = 400 << 20
while True:
    try:
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        break
    except torch.OutOfMemoryError:
        size //= 2
print(size >> 20)
"""


@pytest.mark.long
def test_a_script_that_catches_the_error_is_run_on_each_card(tmp_path):
    path = tmp_path / "halves.py"
    path.write_text(HALVES)
    words = [*RESERVE, "--gpu", "256MiB,context=0,host=16MiB", path]
    found = answer(*words, brief=False)
    ways = found["cards"][0]["ways"]
    assert {way["run"]["output"] for way in ways.values()} == {"200"}
    assert all(way["fits"] for way in ways.values())
    assert found["smallest_bytes"]["native"] < 32 * MIB
    said = "the script caught an out-of-memory error and went on, perhaps with less."
    assert said in fit(*words).out


@pytest.mark.long
def test_with_the_rescue_a_script_catches_other_errors(tmp_path):
    """Where host memory takes what it asks for first, it catches none."""
    path = tmp_path / "halves.py"
    path.write_text(HALVES)
    words = [*RESERVE, "--gpu", "256MiB,context=0,host=4GiB", path]
    ways = answer(*words)["cards"][0]["ways"]
    printed = {name: way["run"]["output"].splitlines() for name, way in ways.items()}
    assert printed["native"] == printed["expandable"] == printed["oomph"] == ["200"]
    assert "400" in printed["rescue"]
    assert ways["rescue"]["run"]["host_bytes"] > 100 * MIB


RECKONS = """
import torch

free, total = torch.cuda.mem_get_info()
if total < 1 << 30:
    torch.empty(free - (512 << 20), dtype=torch.uint8, device="cuda")
torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.long
def test_a_card_on_which_the_script_fails_otherwise_is_one_of_several(tmp_path):
    """It reckons with what is free; the smallest card is sought all the same."""
    path = tmp_path / "reckons.py"
    path.write_text(RECKONS)
    words = ["--gpu", "256MiB,context=0,2GiB,context=0", path]
    result = oomph("fit", *words)
    assert result.code == 1
    assert result.out.splitlines()[1].split()[2:6] == ["MiB", *["fails"] * 3]
    assert result.out.splitlines()[2].split()[2:6] == ["GiB", *["fits"] * 3]
    assert "negative dimension" in result.out
    assert "With more memory it succeeds." in result.out
    found = answer(*words, brief=False)
    for way, size in found["smallest_bytes"].items():
        assert 512 * MIB <= size < 530 * MIB, way


TAKES_TURNS = """
import torch

judge, maker = torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(2048, 2048).cuda()
judges, makes = (torch.optim.Adam(m.parameters(), fused=True) for m in (judge, maker))
for step in range(1000):
    for _ in range(5):
        judge(torch.ones(8, 64, device="cuda")).sum().backward()
        judges.step()
    maker(torch.ones(8, 2048, device="cuda")).sum().backward()
    makes.step()
    if step == 2:
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.long
def test_so_many_steps_of_each_optimizer_are_seen(tmp_path):
    path = tmp_path / "turns.py"
    path.write_text(TAKES_TURNS)
    ways = answer("--gpu", "8GiB", path)["cards"][0]["ways"]
    run, looked = ways["native"]["run"], ways["oomph"]["run"]
    assert run["ending"] == "steps"
    # It lasts as long as the look did after the step that had the peak.
    assert run["steps"] - (looked["until"] - looked["enough"]) == 6
    assert run["allocated_bytes"] > GIB


STEPS_LATE = """
import torch

policy, judge = torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(2048, 2048).cuda()
acts, judges = (torch.optim.Adam(m.parameters()) for m in (policy, judge))
wrapper = torch.optim.SGD(policy.parameters())  # never steps, and trains nothing else
for step in range(1000):
    policy(torch.ones(8, 64, device="cuda")).sum().backward()
    acts.step()
    if step % 10 == 9:
        judge(torch.ones(8, 2048, device="cuda")).sum().backward()
        judges.step()
"""


def test_an_optimizer_that_has_not_stepped_yet_is_waited_for(tmp_path):
    path = tmp_path / "late.py"
    path.write_text(STEPS_LATE)
    run = answer("--gpu", "8GiB", "--steps", "2", path)["cards"][0]["ways"]["native"]
    assert run["run"]["ending"] == "steps"
    assert run["run"]["allocated_bytes"] > 4 * 2048 * 2048 * 4  # with all of its state


FORKS = """
import os, sys, torch

for n in (1, 3, 2):
    if (pid := os.fork()) == 0:
        x = torch.empty(n << 28, dtype=torch.uint8, device="cuda")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
print("all folds", flush=True)
os._exit(0)
"""


def test_of_processes_that_a_script_forks_the_largest_is_reported(tmp_path):
    path = tmp_path / "folds.py"
    path.write_text(FORKS)
    result = fit("--gpu", "8GiB", "--brief", path)
    found = answer("--gpu", "8GiB,1GiB", "--with", "native", path)
    ways = {c["card"]: c["ways"]["native"] for c in found["cards"]}
    assert ways["8GiB"]["run"]["allocated_bytes"] == 3 << 28
    assert ways["8GiB"]["run"]["processes"] == 3
    assert (ways["1GiB"]["fits"], ways["8GiB"]["fits"]) == (False, True)
    assert "3 processes of the script used a GPU" in result.out


def test_a_script_that_leaves_without_an_end_is_seen(tmp_path):
    path = tmp_path / "leaves.py"
    path.write_text(
        "import os, torch\n"
        "x = torch.empty(1 << 28, dtype=torch.uint8, device='cuda')\n"
        "os._exit(0)\n"
    )
    run = answer("--gpu", "8GiB", path)["cards"][0]["ways"]["native"]["run"]
    assert (run["ending"], run["exit_code"]) == ("script", 0)
    assert run["allocated_bytes"] == 1 << 28


def test_an_error_is_shown_without_what_runs_the_script(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("import torch\ntorch.ones(1, device='cuda')\nraise ValueError(3)\n")
    said = fit("--gpu", "1GiB", path).err
    assert f'Traceback (most recent call last):\n  File "{path}", line 3' in said
    assert "oomph/fitting" not in said and "runpy" not in said
    assert "--values runs it with them" in said


@pytest.mark.long
def test_values_with_which_the_script_catches_the_error_fit_and_this_is_said(tmp_path):
    path = tmp_path / "halves.py"
    path.write_text("import os\n" + HALVES.replace("400", "int(os.environ['SIZE'])"))
    card = ["--gpu", "256MiB,context=0,host=16MiB"]
    result = fit(*RESERVE, *card, "--vary", "SIZE=100..400", path)
    assert result.code == 0, result.said
    assert result.out.splitlines()[2].split()[2:] == ["MiB", *["400", "or", "more"] * 4]
    assert "caught an out-of-memory error and went on" in result.out
    assert "caught" not in fit(*RESERVE, *card, "--vary", "SIZE=100..200", path).out


@pytest.mark.long
def test_the_exit_code_is_that_of_the_way_that_is_asked_for(train):
    words = [*RESERVE, "--gpu", "400MiB,context=0", "--with", "native"]
    assert fit(*words, train, "--batch", "8192").code == 1


@pytest.mark.long
def test_a_peak_is_seen_though_the_script_resets_its_own(tmp_path):
    path = tmp_path / "reset.py"
    path.write_text(
        "import torch\n"
        "x = torch.empty(300 << 20, dtype=torch.uint8, device='cuda')\n"
        "del x\n"
        "torch.cuda.empty_cache()\n"
        "torch.cuda.reset_peak_memory_stats()\n"
        "y = torch.empty(10 << 20, dtype=torch.uint8, device='cuda')\n"
    )
    found = answer("--gpu", "200MiB,context=0,host=64MiB", path)["cards"][0]["ways"]
    assert not any(way["fits"] for way in found.values())


@pytest.mark.long
def test_a_script_that_asks_how_much_is_free_is_run_on_each_card(tmp_path):
    path = tmp_path / "adapts.py"
    path.write_text(
        "import torch\n"
        "free, total = torch.cuda.mem_get_info()\n"
        "x = torch.empty(free // 2, dtype=torch.uint8, device='cuda')\n"
    )
    found = answer(*RESERVE, "--gpu", "1GiB,context=0", path, brief=False)
    ways = found["cards"][0]["ways"]
    assert {(w["fits"], w["was_run"]) for w in ways.values()} == {(True, True)}
    assert found["smallest_bytes"]["native"] < 64 * MIB
    assert "asks how much memory is free" in fit("--gpu", "1GiB", path).out


BAD_SCRIPTS = {
    "raises": ("raise KeyError('no such column')", "KeyError: 'no such column'"),
    "exits": ("raise SystemExit('give me data')", "give me data"),
    "reads": ("input('name? ')", "a script is given no standard input here"),
    "waits": (
        "import torch\nx = torch.rand(9999, device='cuda')\nwhile not x.max() > 0: ...",
        "the script took too long. Perhaps a loop waits for a value, which is 0",
    ),
    "prepares": (
        "import time, torch\ntime.sleep(60)\ntorch.ones(9999, device='cuda')",
        "the time was up before the script used a GPU",
    ),
    "lacks": (
        "import torch\ntorch.ones(9999, device='cuda:3')",
        "the simulated machine has 1 device, cuda:0. Give the card devices=",
    ),
    "dies": ("import os\nos.kill(os.getpid(), 9)", "exit code -9"),
}


def test_a_device_that_is_missing_is_explained_without_a_question_too(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(BAD_SCRIPTS["lacks"][0])
    result = oomph("run", "--simulate", "1GiB,devices=2", path)
    assert result.code == 1
    assert "the simulated machine has 2 devices, up to cuda:1" in result.err
    result = oomph("run", "--simulate", "1GiB,devices=4", path)
    assert result.code == 0, result.said


@pytest.mark.long
@pytest.mark.parametrize("kind", BAD_SCRIPTS)
def test_a_script_that_fails_is_shown_with_what_it_said(kind, tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(BAD_SCRIPTS[kind][0])
    seconds = "3" if kind in ("waits", "prepares") else "60"
    result = fit("--gpu", "1GiB", "--seconds", seconds, path)
    assert result.code == 3
    assert BAD_SCRIPTS[kind][1] in result.err
    assert result.out == ""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["waits", "prepares"])
def test_of_a_module_it_is_known_whether_it_used_a_gpu(kind, tmp_path):
    program, said = BAD_SCRIPTS[kind]
    (tmp_path / "bad.py").write_text(
        f"import tempfile\nfile = tempfile.TemporaryFile()\n{program}"
    )
    result = fit("--gpu", "1GiB", "--seconds", "3", "-m", "bad", cwd=tmp_path)
    assert said in result.err


@pytest.mark.long
def test_an_option_that_the_script_does_not_have_is_its_own_error(train):
    result = fit("--gpu", "1GiB", "--vary", "--batchsize=1..8", train)
    assert result.code == 3
    assert "unrecognized arguments: --batchsize 1" in result.err


BAD_QUESTIONS = {
    ("nothing.py",): "there is no file nothing.py",
    ("--gpu", "0GiB", __file__): "must start with the memory of a device",
    ("--gpu", "rtx9999", __file__): "must start with the memory of a device",
    ("--gpu", "", __file__): "must start with the memory of a device",
    ("--set", "offload:off", __file__): "each way sets offload and required itself",
    ("--set", "speed:9", __file__): "there is no setting 'speed'",
    ("--host", "much", __file__): "host=",
    ("--steps", "0", __file__): "steps and seconds must be more than 0",
    ("--vary", "--batch=", __file__): "write NAME=LOW..HIGH",
    ("--vary", "--batch=9..3", __file__): "write NAME=LOW..HIGH",
    ("--vary", "=1..3", __file__): "write NAME=LOW..HIGH",
}


@pytest.mark.parametrize("words", BAD_QUESTIONS)
def test_a_question_that_cannot_be_asked_is_an_error(words):
    result = fit(*words)
    assert result.code == 2
    assert BAD_QUESTIONS[words] in result.err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("train.ipynb", '{"cells": []}', "train.ipynb is a notebook, and no script"),
        (
            "train.sh",
            "#!/bin/bash\npython train.py --batch 8\n",
            "train.sh is no Python script (it begins with #!/bin/bash): name the one",
        ),
    ],
)
def test_what_is_no_script_is_told_before_it_is_run(name, text, said, tmp_path):
    file = tmp_path / name
    file.write_text(text)
    result = fit("--gpu", "1GiB", file)
    assert result.code == 2
    assert said in result.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_nothing_is_left_after_an_interrupt(number, code, tmp_path):
    path, pids = tmp_path / "sleeps.py", tmp_path / "pids"
    folders = tmp_path / "folders"
    folders.mkdir()
    path.write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    python = [sys.executable, "-X", "faulthandler"]
    command = [*python, "-m", "oomph", "fit", "--gpu", "1GiB", str(path)]
    # What a shell has started in the background does not hear of interrupts.
    hears = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=hears,
        env={**os.environ, "TMPDIR": str(folders)},
    )
    deadline = time.monotonic() + 60
    while not (pids.exists() and pids.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    try:
        assert process.wait(60) == code
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGABRT)  # says where it hangs
            process.wait()
    for pid in map(int, pids.read_text().split()):
        assert not is_running(pid)
    assert not [*folders.glob("oomph-*")]


def test_an_interrupt_at_any_line_of_waiting_leaves_what_is_waited_for_usable():
    for moment in range(1, 1000):
        event = Event()
        setter = threading.Timer(0.01, event.set)
        setter.start()
        try:
            interrupted(moment, lambda event=event: event.wait(5))
        except KeyboardInterrupt:
            again = threading.Thread(target=event.set, daemon=True)
            again.start()
            again.join(5)
            assert not again.is_alive(), f"at line {moment}"
            assert event.wait(5)
        else:
            assert moment > 3  # some lines were interrupted
            return
    raise AssertionError("it has no end")


def interrupted(moment: int, wait: Callable[[], bool]) -> None:
    """Waits, with Ctrl-C as the line of that number is to run."""
    count = itertools.count(1)

    def trace(frame: FrameType, event: str, value: object) -> Callable:
        if event == "line" and next(count) == moment:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        assert wait()
    finally:
        sys.settrace(None)


def is_running(pid: int) -> bool:
    """A process that waits for its parent to ask how it ended is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.long
def test_a_module_is_run_with_its_own_options(train, tmp_path):
    result = oomph(
        *["fit", "--gpu", "1GiB", "--steps", "2", "--json", "-m", "train"],
        *["--steps", "9"],
        cwd=tmp_path,
    )
    assert result.code == 0, result.said
    run = json.loads(result.out)["cards"][0]["ways"]["native"]["run"]
    assert run["output"].split() == ["step", "0"]  # the second step ended it
    assert (run["ending"], run["steps"]) == ("steps", 2)


# ---- parts


def test_the_last_place_that_holds_is_found_by_any_guess():
    seed = int(os.environ.get("OOMPH_TEST_SEED", random.randrange(1 << 16)))
    print(f"OOMPH_TEST_SEED={seed}")
    rng = random.Random(seed)
    for _ in range(500):
        count = rng.randint(1, 300)
        last = rng.randint(-1, count - 1)
        asked = []

        def holds(place, last=last, asked=asked):
            asked.append(place)
            return place <= last

        found = varying.last_that(
            holds, count, lambda low, high: rng.randint(low - 9, high + 9)
        )
        assert found == (None if last < 0 else last)
        assert len(asked) <= 2 + 2 * count.bit_length()


@pytest.mark.parametrize(
    ("given", "name", "changed"),
    [
        (("--batch", "8", "-v"), "--batch", ("--batch", "9", "-v")),
        (("--batch=8",), "--batch", ("--batch=9",)),
        (("-v",), "--batch", ("-v", "--batch", "9")),
        (("data.batch=8", "lr=1"), "data.batch", ("data.batch=9", "lr=1")),
        (("lr=1",), "data.batch", ("lr=1", "data.batch=9")),
        (("--batch-size", "8"), "--batch", ("--batch-size", "8", "--batch", "9")),
    ],
)
def test_an_option_is_replaced_where_it_stands(given, name, changed):
    script = varying.with_value(Script("train.py", given), name, "9")
    assert script.arguments == changed
    assert script.variables == {}


def test_a_variable_is_set_in_the_environment():
    script = varying.with_value(Script("train.py"), "BATCH_SIZE", "9")
    assert (script.arguments, script.variables) == ((), {"BATCH_SIZE": "9"})


def test_cards_are_read_with_their_keys_and_sorted():
    found = cards.targets("h100,24GiB,gpu=rtx4090,link=25GB/s,12GiB", "32GiB")
    assert [card.name for card in found] == [
        "12GiB",
        "24GiB,gpu=rtx4090,link=25GB/s",
        "h100",
    ]
    assert [card.roomy for card in found] == [
        "4TiB,host=32GiB",
        "4TiB,gpu=rtx4090,link=25GB/s,host=32GiB",
        "4TiB,gpu=h100,host=32GiB",
    ]
    assert {card.host_bytes for card in found} == {32 * GIB}


# ---- oomph.fit


FUNCTIONS = """
import functools, sys
import oomph

def train(batch):
    import torch
    weights = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    batch = torch.empty(batch << 20, dtype=torch.uint8, device="cuda")

def fails():
    raise KeyError("no such column")

SMALL = "200MiB,context=0,host=16MiB"
if __name__ == "__main__":
    found = oomph.fit(functools.partial(train, batch=150), [SMALL, "rtx4090"],
                      settings="reserve:0")
    print([(a.card.name, a.way.name, a.fits) for a in found.answers])
    print(found.fits(), found.fits("native"), "torch" in sys.modules)
    native = found.on("rtx4090", "native")
    print(native.allocated_bytes >> 20, native.reserved_bytes >> 20, native.step_ms)
    print(found.table())
    for bad in (fails, lambda: None):
        try:
            oomph.fit(bad, "1GiB")
        except (oomph.ScriptError, ValueError) as error:
            print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """What a program says that asks of its own functions."""
    path = tmp_path_factory.mktemp("functions") / "asks.py"
    path.write_text(FUNCTIONS)
    result = execute(sys.executable, path)
    assert result.code == 0, result.said
    return result.out


@pytest.mark.long
def test_a_function_is_run_on_cards_as_a_script_is(functions):
    answers, all_fit, figures = functions.splitlines()[:3]
    small, large = "200MiB,context=0,host=16MiB", "rtx4090"
    assert ast.literal_eval(answers) == [
        (card, way.name, card == large) for card in (small, large) for way in Way
    ]
    assert all_fit == "False False False"
    assert figures == "250 250 None"
    assert f"{small}  200.00 MiB  no" in functions
    assert "KeyError: 'no such column'" in functions


def test_a_function_that_no_other_process_finds_is_an_error(functions):
    assert "ValueError <function <lambda>" in functions
    assert "give a function that stands in a module" in functions


@pytest.mark.long
def test_a_program_without_a_guard_does_not_ask_again(tmp_path):
    path = tmp_path / "asks.py"
    path.write_text("import oomph\ndef nothing(): pass\noomph.fit(nothing, '1GiB')\n")
    result = execute(sys.executable, path)
    assert result.code == 1
    assert "write if __name__ == '__main__': before the call" in result.err


@pytest.mark.long
def test_a_script_is_asked_of_as_on_the_command_line(train):
    found = run(
        "import oomph, sys\n"
        "words = [sys.argv[1], '--batch', '8192']\n"
        "found = oomph.fit(words, 'rtx4090', steps=3)\n"
        "rescue = found.on('rtx4090')\n"
        "print(rescue.allocated_bytes, rescue.record.steps, rescue.step_ms > 0)\n",
        train,
    )
    asked = answer("--gpu", "rtx4090", "--steps", "3", train, "--batch", "8192")
    ways = asked["cards"][0]["ways"]
    assert found.out.split() == [
        str(ways["rescue"]["run"]["allocated_bytes"]),
        "3",
        "True",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("['nothing.py'], '1GiB'", "ValueError: there is no file nothing.py"),
        ("[], '1GiB'", "ValueError: there is no file"),
        ("['-m', 'this'], 'rtx9999'", "must start with the memory of a device"),
        ("['-m', 'this'], steps=0", "steps and seconds must be more than 0"),
        ("['-m', 'this'], settings='speed:9'", "there is no setting 'speed'"),
    ],
)
def test_a_question_that_cannot_be_asked_raises(words, said):
    result = run(f"import oomph; oomph.fit({words})")
    assert result.code == 1
    assert said in result.err


@pytest.mark.long
def test_a_card_or_a_way_that_was_not_asked_for_raises():
    result = run(
        "import oomph\n"
        "found = oomph.fit(['-m', 'this'], '1GiB')\n"
        "for words in (('2GiB',), ('1GiB', 'luck')):\n"
        "    try: found.on(*words)\n"
        "    except ValueError as error: print(error)\n"
    )
    assert result.out.splitlines()[-2:] == [
        "2GiB was not asked for; the cards are 1GiB",
        "there is no way 'luck'; there are native, expandable, oomph, rescue",
    ]
