"""``oomph fit`` runs the script on to its end, and answers for what it needs late."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from oomph import ScriptError, fit
from oomph.fitting import answers, cards, report, runs, whole
from oomph.fitting.measuring import Script, measure
from oomph.fitting.process.extent import Extent
from oomph.fitting.progress import Progress
from support import MIB, oomph

BEGIN = """
import argparse, os, time, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
batch = parser.parse_args().batch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step(count):
    model(torch.zeros(count, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
def evaluate():
    torch.zeros(400 << 18, device="cuda")
"""
# The first run looks on for two seconds.
STEPS = "\nfor number in range(100):\n    time.sleep(0.03)\n    step(batch)\n"
CURRICULUM = f"{BEGIN}{STEPS}    if number == 90:\n        step(400 << 10)\n"
SHORT = f"{BEGIN}for number in range(12):\n    step(batch)\nevaluate()\n"
LOADS_AGAIN = f"""{BEGIN}{STEPS}
optimizer = torch.optim.Adam(model.parameters())
step(batch)
path = os.path.join(os.path.dirname(__file__), "best.pt")
tied = model.weight
torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "whole": model, "both": [tied, tied]}}, path)
assert not os.path.exists(path)
found = torch.load(path, weights_only=False)
model.load_state_dict(found["model"])
optimizer.load_state_dict(found["optimizer"])
assert found["whole"].weight.shape == (256, 256) and found["whole"].weight.is_cuda
assert found["both"][0] is found["both"][1] and found["both"][0].requires_grad
state = optimizer.state[tied]
assert state["step"].item() == 1 and state["exp_avg"].is_cuda
for where in ("cpu", torch.device("cpu"), {{"cuda:0": "cpu"}}, lambda kept, _: kept):
    there = torch.load(path, map_location=where, weights_only=False)
    assert there["model"]["weight"].device.type == "cpu"
step(batch)
evaluate()
"""
ON_AND_ON = f"{BEGIN}{STEPS.replace('range(100)', 'range(10 ** 9)')}"
FAILS = f"{BEGIN}{STEPS}raise SystemExit('no value')\n"


def commands() -> Iterator[bytes]:
    """Of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def ask(path: Path, code: str, card: str = "300MiB,context=0", **options):
    path = path / "train.py"
    path.write_text(code)
    return fit([str(path)], card, **options)


@pytest.fixture
def patient(monkeypatch):
    """Waits for the end of a script also where this machine is slow."""
    monkeypatch.setattr(answers, "_WHOLE_S", 60.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("code", "at", "most"),
    [
        (CURRICULUM, "by step 92", 800 * MIB),
        (LOADS_AGAIN, "after its last step", 400 * MIB),
    ],
    ids=["curriculum", "at the end, by what it had saved"],
)
def test_all_answers_are_for_what_is_needed_late(tmp_path, code, at, most):
    found = ask(tmp_path, code, "300MiB,context=0,1GiB,context=0")
    small, large = "300MiB,context=0", "1GiB,context=0"
    for way in ("native", "expandable", "oomph"):
        assert not found.on(small, way).fits and found.on(large, way).fits
        assert most <= found.on(large, way).allocated_bytes < 1.2 * most
        assert most <= found.smallest[found.on(large, way).way] < 1.3 * most
    assert found.grows and found.whole.ended
    table = found.table()
    assert f"The script needs most {at}" in table
    assert "also ran to its end (10" in table
    assert not (tmp_path / "best.pt").exists()
    assert found.peak is not None and found.peak.diagnosis is not None
    assert found.peak.diagnosis["request"]["size_bytes"] >= 400 * MIB
    data = report.data(found)["whole"]
    assert data["ending"] == "script" and len(data["steps_bytes"]) > 100


def test_a_script_that_ends_within_the_look_is_run_to_its_end_everywhere(tmp_path):
    found = ask(tmp_path, SHORT, brief=True)
    assert not found.fits("native") and not found.fits("oomph")
    assert found.whole is None  # the first run was the whole
    said = "The script ran to its end (12 steps). It needs most after its last step."
    assert said in found.table()


def test_the_smallest_cards_are_those_of_one_kind(tmp_path):
    code = "import torch\nx = torch.zeros(1 << 20, device='cuda')\n"
    said = "The smallest cards are otherwise like rtx4090"
    assert said in ask(tmp_path, code, "1GiB,context=0,rtx4090").table()
    assert said not in ask(tmp_path, code, "rtx4090").table()


def test_the_largest_value_is_for_what_is_needed_late(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(CURRICULUM)
    names = "256MiB,context=0,900MiB,context=0"
    result = oomph("fit", "--gpu", names, "--vary", "--batch=64,128", path)
    rows = [line.split()[3:] for line in result.out.splitlines() if "MiB,c" in line]
    assert [row[:3] for row in rows] == [["none"] * 3, ["128", "or", "more"]]
    assert "and with the smallest --batch it also ran to its end" in result.out


def test_a_script_without_an_end_is_waited_for_as_long_as_it_takes(tmp_path):
    path, known = tmp_path / "train.py", []
    path.write_text(ON_AND_ON)
    script = Script.of([str(path)], extent=Extent.of(None))
    targets = cards.targets("300MiB,context=0", "64GiB")
    said = Progress(lambda _: None, known.append)
    found = answers.find(script, targets, said, brief=True)
    way = "PyTorch), by its first steps"
    assert f"300MiB,context=0 is large enough ({way}" in known
    assert found.fits() and not found.grows and not found.whole.ended
    said = found.table()
    assert "steps, for as long as the answers took, and needed no more." in said
    assert "What comes after that is unknown." in said
    assert not [c for c in commands() if os.fsencode(tmp_path) in c]


@pytest.mark.usefixtures("patient")
def test_an_error_late_is_told(tmp_path):
    found = ask(tmp_path, FAILS, brief=True)
    assert found.fits() and found.whole.exit_code == 1
    assert "also ran for 100 steps, up to an error" in found.table()


def test_so_many_steps_are_so_many(tmp_path):
    found = ask(tmp_path, CURRICULUM, brief=True, steps=4)
    assert found.fits("oomph") and found.whole is None


# ---- what was there before

CHANGES = {
    "deletes": "path.unlink()",
    "deletes with its folder": "shutil.rmtree(path.parent)",
    "moves": "path.rename('moved')",
    "moves another there": "open('new', 'w'); os.replace('new', path)",
    "opens it otherwise": "os.open(path, os.O_TRUNC | os.O_WRONLY)",
}
HARMLESS = {
    "reads": "path.read_text()",
    "writes anew": "open(path, 'w').write('b'); assert open(path).read() == 'b'",
    "appends": "path.open('a').write('b'); assert path.read_text() == f'{kept}b'",
    "changes": "f = open(path, 'r+b'); f.write(b'O'); f.close()",
    "logs": "import logging; logging.FileHandler(path, 'w').close()",
    "an empty one": "empty.write_text('lock'); empty.unlink()",
    "its own": "own.write_text('a'); own.write_text('b'); own.unlink()",
    "its own folder": "os.mkdir('f'); open('f/a', 'w'); shutil.rmtree('f')",
    "none": "os.path.exists('none') or open(os.devnull, 'w'); open(os.dup(1), 'w')",
}
KEPT = "of an earlier training"


def ended_before(path: Path, change: str) -> bool:
    """Whether a program ends before it does something to ``path``, which stays."""
    kept = path / "results" / "kept.txt"
    kept.parent.mkdir()
    kept.write_text(KEPT)
    (path / "empty").touch()
    code = f"""
import os, shutil, time
from pathlib import Path
from oomph.fitting.process import keeping
kept, path, empty = {KEPT!r}, Path({str(kept)!r}), Path("empty")
own = Path("own.txt")
time.sleep(0.05)
keeping.keep(time.time() - 0.02, Path("copies"), lambda file: os._exit(7))
{change}
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=path, check=False)
    assert found.returncode in (0, 7)
    assert kept.read_text() == KEPT
    return found.returncode == 7


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_ends_before_a_file_of_before_is_changed(tmp_path, change):
    assert ended_before(tmp_path, change)


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_it_does_not_end_for_what_changes_no_file_of_before(tmp_path, change):
    assert not ended_before(tmp_path, change)


@pytest.mark.usefixtures("patient")
def test_results_of_an_earlier_training_are_kept(tmp_path):
    model, results = tmp_path / "best.pt", tmp_path / "results.txt"
    for kept in (model, results):
        kept.write_text(KEPT)
    write = f"torch.save(model, {str(model)!r}); open({str(results)!r}, 'w')"
    delete = f"os.remove({str(model)!r})"
    found = ask(tmp_path, f"{BEGIN}{STEPS}{write}\n{delete}\n", brief=True)
    assert [kept.read_text() for kept in (model, results)] == [KEPT, KEPT]
    assert found.fits() and found.whole.later == "file"
    said = f"up to where it would change a file that was there before ({model})"
    assert said in found.table()


def test_a_short_script_keeps_them_too(tmp_path):
    kept, log = tmp_path / "results.txt", tmp_path / "log.txt"
    kept.write_text(KEPT)
    log.write_text(KEPT)
    begin = f"open({str(log)!r}, 'w')\n"  # before it uses a GPU it may
    end = f"open({str(kept)!r}, 'w')\nos.remove({str(kept)!r})\nevaluate()\n"
    train = f"{begin}{BEGIN}for number in range(4):\n    step(batch)\n{end}"
    found = ask(tmp_path, train, brief=True)
    assert (kept.read_text(), log.read_text()) == (KEPT, "")
    assert found.fits() and found.whole is None
    said = "stopped after 4 steps of its optimizers, before it would change"
    assert f"{said} {kept}, which was there before" in found.table()


def test_nothing_is_answered_of_a_script_that_would_change_them_before_a_step(tmp_path):
    kept = tmp_path / "results.txt"
    kept.write_text(KEPT)
    with pytest.raises(ScriptError, match="stopped before its first step, as it would"):
        ask(tmp_path, f"{BEGIN}os.remove({str(kept)!r})\nstep(batch)\n", brief=True)
    assert kept.read_text() == KEPT


# ---- beside the others


def test_a_run_that_wants_to_be_alone_ends_it(monkeypatch, tmp_path):
    in_whole = []

    def fails_beside(launcher, script: Script, place, stop):
        record = measure(launcher, script, place, stop)
        is_beside = "GiB" in place.card.partition("TiB")[0] and not in_whole[0].done()
        if is_beside:
            return replace(record, ending="error", exit_code=1)
        return record

    class Whole(whole.Whole):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            in_whole.append(self._future)

    monkeypatch.setattr(runs, "Whole", Whole)
    monkeypatch.setattr(runs, "measure", fails_beside)
    found = ask(tmp_path, ON_AND_ON.replace("64", "1 << 20"), "1GiB,context=0")
    assert not any(each.failed for each in found.answers)
    assert in_whole[0].done()
