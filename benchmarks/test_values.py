"""What do values cost on the simulated GPU?"""

from __future__ import annotations

import resource
import time
from pathlib import Path

from setuptools import Distribution
from support import (
    CARD,
    ROOT,
    numbers,
    run_snippet,
    setup_functions,
    torch_folder,
)

CARD_WITH_VALUES = "1GiB,context=0,memory=values"

# Processor time of all threads, in short pieces that alternate with the plain CPU in
# one process: others that use the machine disturb few of them, and both sides alike.
ALTERNATE = """
import runpy, sys, time, torch
torch.set_num_threads(1)

def processor_us(work, count):
    torch.cuda.synchronize()
    start = time.process_time()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return (time.process_time() - start) / count * 1e6

def alternate(sides, pieces, count):
    found = {side: [] for side in sides}
    for piece in range(pieces):
        for side, work in sides.items():
            us = processor_us(work, count)
            if piece >= pieces // 10:  # before, all is made for the first time
                found[side].append(us)
    for side, times in found.items():
        times.sort()
        print(side, times[len(times) // 10])
        print(side + "_middle", times[len(times) // 2])
"""

STEP = f"""
script = runpy.run_path({str(ROOT / "examples" / "train_gpt.py")!r})

def step_on(device):
    sys.argv[1:] = [
        *"--layers 4 --heads 4 --width 128 --vocabulary 512".split(),
        *"--block 64 --batch 12 --device".split(), device,
    ]
    arguments = script["parse_arguments"]()
    batches = script["Batches"](arguments)
    model = script["GPT"](arguments).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        loss = model(*batches.next())
        loss.backward()
        loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step

alternate({{"cpu": step_on("cpu"), "values": step_on("cuda")}}, pieces=60, count=1)
"""

SMALL_OPERATOR = """
def add_on(device):
    x = torch.zeros(16, device=device)
    return lambda: x.add_(1)

alternate({"cpu": add_on("cpu"), "gpu": add_on("cuda")}, pieces=1000, count=200)
"""


def test_a_step_with_values_costs_little_more_than_on_the_cpu(figure):
    found = numbers(run_snippet(ALTERNATE + STEP, "oomph", CARD_WITH_VALUES))
    figure(
        name="step of a small GPT with values / on the CPU",
        value=found["values"] / found["cpu"],
        limit=2.5,
        unit="x",
        kind="paired",
        how="4 layers of 128, 12 x 64 tokens, 1 thread; processor time, 10th of 100 of "
        "54 steps each that alternate in one process: "
        f"{found['values'] / 1e3:.1f} and {found['cpu'] / 1e3:.1f} ms (half of them "
        f"took less than {found['values_middle'] / 1e3:.1f} and "
        f"{found['cpu_middle'] / 1e3:.1f} ms)",
    )


def test_values_add_little_to_a_small_operator(figure):
    found = {
        side: numbers(run_snippet(ALTERNATE + SMALL_OPERATOR, "oomph", card))
        for side, card in {"values": CARD_WITH_VALUES, "shapes": CARD}.items()
    }
    values, shapes = found["values"], found["shapes"]
    figure(
        name="x.add_(1) of 16 elements with values",
        value=values["gpu"],
        limit=10,
        unit="us",
        kind="paired",
        how="processor time, 10th of 100 of 900 batches of 200 that alternate with the "
        f"plain CPU's, {values['cpu']:.1f} us (half of them took less than "
        f"{values['gpu_middle']:.1f} and {values['cpu_middle']:.1f} us); without "
        f"values {shapes['gpu']:.1f} us",
    )


def cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_values_layer_is_built_quickly(figure, tmp_path: Path):
    setup = setup_functions()
    includes = setup["system_includes"](setup["cuda_includes"]())
    extension = setup["values_extension"](torch_folder(), includes)
    command = setup["Build"](Distribution({"ext_modules": [extension]}))
    command.build_temp, command.build_lib = str(tmp_path), str(tmp_path)
    command.ensure_finalized()
    before, start = cpu_seconds_of_children(), time.monotonic()
    command.run()
    wall = time.monotonic() - start
    figure(
        name="build of the values layer, processor time",
        value=cpu_seconds_of_children() - before,
        limit=30,
        unit="s",
        kind="timed",
        how=f"one compiler, {wall:.1f} s on the clock of this machine",
    )
