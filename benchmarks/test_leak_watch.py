"""What does it cost to watch a program for leaks?"""

from __future__ import annotations

import pytest
from support import ROOT, numbers, run_snippet

STEP_MS = 300.0  # of GPT-2 124 M on a GPU
STEPS = 100
SHARE_MAX = 0.01
MOST_MS = 20.0  # in the slowest step
SMALL = ["--layers", "4", "--block", "64"]

TRAIN = f"""
import gc, runpy, statistics, sys, time
import oomph
from oomph.leaks import watching

spent = [0.0]  # in each step, the last of which goes on

def collects(phase, _):
    # Python collects when a program has made enough objects; not for those who watch.
    spent[-1] += time.process_time() * (1 if phase == "start" else -1) * is_timed[-1]

is_timed = [False]
gc.callbacks.append(collects)

def timed(method):
    def run(*arguments):
        start = time.process_time()
        is_timed.append(True)
        method(*arguments)
        is_timed.pop()
        spent[-1] += time.process_time() - start
        if method.__name__ == "end_step":
            spent.append(0.0)
    return run

for name in ("after_optimizer", "end_step"):
    setattr(watching.Watch, name, timed(getattr(watching.Watch, name)))
watched = oomph.leaks.watch()
folder = {str(ROOT / "examples")!r}
sys.path.insert(0, folder)
sys.argv = ["PROGRAM", "--batch", "4", "--steps", "{STEPS}", *OPTIONS]
runpy.run_path(folder + "/PROGRAM", run_name="__main__")
assert watched.steps == {STEPS}
print("leaks", len(watched.findings))
spent.pop()
print("step_ms", statistics.median(spent) * 1e3)
print("most_ms", max(spent) * 1e3)
print("all_ms", sum(spent) * 1e3)
"""


def cost(program: str, options: list[str]) -> dict[str, float]:
    """What it costs to watch an example: see what ``TRAIN`` prints."""
    code = TRAIN.replace("PROGRAM", program).replace("OPTIONS", str(options))
    return numbers(run_snippet(code, "oomph"))


def test_watching_costs_little_of_a_step(figure):
    found = cost("train_gpt.py", [])
    assert found["leaks"] == 0
    figure(
        name=f"leaks:count, of a step of {STEP_MS:.0f} ms",
        value=found["step_ms"] / STEP_MS,
        limit=SHARE_MAX,
        unit="of a step",
        kind="timed",
        how=f"processor time, median of {STEPS} steps of GPT-2 124 M: "
        f"{found['step_ms']:.3f} ms a step",
    )
    figure(
        name=f"leaks:count, of the first {STEPS} steps with their looks at everything",
        value=found["all_ms"] / STEPS / STEP_MS,
        limit=SHARE_MAX,
        unit="of a step",
        kind="timed",
        how=f"processor time, GPT-2 124 M: {found['all_ms']:.0f} ms in all, "
        f"{found['most_ms']:.0f} ms in the slowest step",
    )


@pytest.mark.parametrize("leaks", [0, 1])
def test_no_step_waits_for_long(figure, leaks):
    """Neither where nothing leaks nor where each look searches what is kept."""
    program = "train_leaking.py" if leaks else "train_gpt.py"
    found = cost(program, SMALL)
    assert found["leaks"] == leaks
    figure(
        name=f"leaks:count, the slowest step of {program}",
        value=found["most_ms"],
        limit=MOST_MS,
        unit="ms",
        kind="timed",
        how=f"processor time, {STEPS} steps: {found['all_ms']:.0f} ms in all",
    )
