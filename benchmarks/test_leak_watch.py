"""What does it cost to watch a program for leaks?"""

from __future__ import annotations

from support import ROOT, numbers, run_snippet

STEP_MS = 300.0  # of GPT-2 124 M on a GPU
STEPS = 100
SHARE_MAX = 0.01

TRAIN = f"""
import runpy, statistics, sys, time
import oomph
from oomph.leaks import watching

spent = [0.0]  # in each step, the last of which goes on

def timed(method):
    def run(*arguments):
        start = time.process_time()
        method(*arguments)
        spent[-1] += time.process_time() - start
        if method.__name__ == "end_step":
            spent.append(0.0)
    return run

for name in ("after_optimizer", "end_step"):
    setattr(watching.Watch, name, timed(getattr(watching.Watch, name)))
watched = oomph.leaks.watch()
sys.argv = ["train_gpt.py", "--batch", "4", "--steps", "{STEPS}"]
runpy.run_path({str(ROOT / "examples" / "train_gpt.py")!r}, run_name="__main__")
assert watched.steps == {STEPS} and watched.findings == []
spent.pop()
print("step_ms", statistics.median(spent) * 1e3)
print("most_ms", max(spent) * 1e3)
print("all_ms", sum(spent) * 1e3)
"""


def test_watching_costs_little_of_a_step(figure):
    found = numbers(run_snippet(TRAIN, "oomph"))
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
