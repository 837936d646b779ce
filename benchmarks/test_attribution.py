"""What does it cost to know which line allocated each block?

Steps of GPT-2 124 M on a simulated card, whose kernels take no time: what they take is
host time. In one process, steps with and without take turns.
"""

from __future__ import annotations

import pytest
from support import ROOT, numbers, run_snippet

STEP_MS = 300.0  # of GPT-2 124 M on a GPU
ROUNDS = 25

TRAIN = f"""
import statistics, sys, threading, time
import torch
sys.path.insert(0, {str(ROOT / "examples")!r})
from train_gpt import GPT, parse_arguments

{{ways}}

def busy():
    while not done.is_set():
        pass

done = threading.Event()
if {{is_busy}}:
    threading.Thread(target=busy, daemon=True).start()
torch.manual_seed(0)
sys.argv[1:] = []
model = GPT(parse_arguments()).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.zeros(4, 1024, dtype=torch.long, device="cuda")

def step():
    model(tokens, tokens).backward()
    optimizer.step()
    optimizer.zero_grad()

def events():
    return torch.cuda.memory_stats()["allocation.all.allocated"]

for _ in range(3):
    step()
before = events()
step()
print("events", events() - before)
clock = time.perf_counter if {{is_busy}} else time.process_time
spent = {{{{way: [] for way in WAYS}}}}
for _ in range({{rounds}}):
    for way, switch in WAYS.items():
        switch()
        start = clock()
        step()
        torch.cuda.synchronize()
        spent[way].append(clock() - start)
done.set()
for way, times in spent.items():
    print(way, statistics.median(times) * 1e3)
"""

OURS = """
from oomph import _torch
WAYS = {
    "none": lambda: _torch.set_site_min_bytes(1 << 60),
    "large": lambda: _torch.set_site_min_bytes(1 << 20),
    "all": lambda: _torch.set_site_min_bytes(1),
}
"""

PYTORCHS = """
history = torch.cuda.memory._record_memory_history
WAYS = {
    "none": lambda: history(None),
    "all": lambda: history("all", stacks="python", max_entries=100_000),
}
"""


def measure(ways: str, allocator: str, is_busy: bool = False) -> dict[str, float]:
    """Milliseconds a step of each way, and how many allocations one makes."""
    rounds = 5 if is_busy else ROUNDS
    code = TRAIN.format(ways=ways, is_busy=is_busy, rounds=rounds)
    return numbers(run_snippet(code, allocator))


@pytest.fixture(scope="module")
def ours() -> dict[str, float]:
    return measure(OURS, "oomph")


@pytest.mark.parametrize(
    "way, limit", [("large", 0.005), ("all", 0.03)], ids=["always on", "all blocks"]
)
def test_call_sites_cost_little_of_a_step(figure, ours, way, limit):
    extra_ms = ours[way] - ours["none"]
    figure(
        name=f"call sites of {way} blocks, of a step of {STEP_MS:.0f} ms",
        value=extra_ms / STEP_MS,
        limit=limit,
        unit="of a step",
        kind="paired",
        how=f"processor time, medians of {ROUNDS} steps in turn: {ours[way]:.2f} ms, "
        f"without {ours['none']:.2f} ms; {ours['events']:.0f} allocations",
    )


def test_a_call_site_costs_less_than_pytorchs_stacks(figure, ours):
    theirs = measure(PYTORCHS, "native")
    per_event = {
        name: max(found["all"] - found["none"], 0.0) / found["events"] * 1e6
        for name, found in (("ours", ours), ("theirs", theirs))
    }
    figure(
        name="call sites of all blocks / PyTorch's history with Python's stacks",
        value=per_event["ours"] / per_event["theirs"],
        limit=1,
        unit="x",
        kind="paired",
        how=f"processor time an allocation: {per_event['ours']:.0f} against "
        f"{per_event['theirs']:.0f} ns, frees included",
    )


def test_a_busy_python_thread_does_not_hold_up_call_sites(figure):
    ours = measure(OURS, "oomph", is_busy=True)
    theirs = measure(PYTORCHS, "native", is_busy=True)
    figure(
        name="step beside a busy thread, call sites of all blocks / without",
        value=ours["all"] / ours["none"],
        limit=1.1,
        unit="x",
        kind="paired",
        how=f"medians of 5 steps in turn: {ours['all']:.0f} against "
        f"{ours['none']:.0f} ms; with PyTorch's history and Python's stacks "
        f"{theirs['all']:.0f} against {theirs['none']:.0f} ms",
    )
