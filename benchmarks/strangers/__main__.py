"""What kernels use on host pages in programs of other hands, once they have settled.

    python benchmarks/strangers --out strangers.jsonl
    python benchmarks/strangers --only llama --factor 1.6

Each program (language.py, pictures.py, generative.py, trainers.py, plain.py) first runs
without a limit, which tells what it needs, and then on cards that have 1/1.2, 1/1.6 and
1/2.5 of that. It runs on a simulated card that computes no contents. Of the steps that
count (from the fifth on, and from the fourth of their kind on) the table gives the
bytes that kernels used on host pages, as a share of those missing.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import multiprocessing
import os
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import oomph.simulate
from collection import programs

CARD = "96GiB,gpu=rtx4090,host=120GiB"
OFFLOAD = "offload:on-oom,host_limit:100GiB"
FACTORS = (1.2, 1.6, 2.5)
FIRST = 4  # steps of the run that do not count
FIRST_OF_KIND = 3  # and of each kind
SECONDS_MAX = 300  # for one run
PRELOADED = (  # what initializes no CUDA when it is imported, as no fork survives that
    *("torch", "torchvision", "transformers", "peft", "diffusers", "timm"),
    *("accelerate", "torch._dynamo"),
)
# Largest shares of the missing bytes: used on host pages, and held on the host at most,
# with the share of programs that must keep to it.
USED_MAX = 0.01
USED_SHARE = {1.2: 0.95, 1.6: 0.95, 2.5: 0.85}
HELD_MAX, HELD_SHARE = 1.15, 0.9
MIB, GIB = 1 << 20, 1 << 30

Row = dict[str, Any]


def run_apart(measure: Any, program: Any, *options: Any, log: Path) -> Row:
    """Measures a program in a process of its own, whose output goes to a file."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_child, args=(log, there, measure, program, *options))
    begun = time.perf_counter()
    process.start()
    there.close()
    found: Row = {"error": f"took longer than {SECONDS_MAX} s", "steps": []}
    if here.poll(SECONDS_MAX):
        found = {"error": "the process died", "steps": []}
        with contextlib.suppress(EOFError):
            found = here.recv()
    process.kill()
    process.join()
    return {**found, "wall_s": round(time.perf_counter() - begun, 1)}


def _child(log: Path, answer: Connection, measure: Any, *what: Any) -> None:
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        answer.send(measure(*what))
    except BaseException:
        answer.send({"error": traceback.format_exc()[-3000:], "steps": []})


# ---- Figures


def counted(steps: list[Row]) -> list[Row]:
    """The steps that count."""
    seen: Counter[str] = Counter()
    found = []
    for i, step in enumerate(steps):
        seen[step["kind"]] += 1
        if i >= FIRST and seen[step["kind"]] > FIRST_OF_KIND:
            found.append(step)
    return found


def compare(name: str, factor: float, floor: Row, limited: Row) -> Row:
    """The figures of a program under a limit; NaN where it died."""
    peak_bytes = peak_of(floor)
    missing_bytes = peak_bytes - limit_of(floor, factor)
    row = {
        "name": name,
        "factor": factor,
        "peak_bytes": peak_bytes,
        "settled_peak_bytes": max(s["need_bytes"] for s in counted(floor["steps"])),
        "missing_bytes": missing_bytes,
        "wall_s": limited["wall_s"],
        "error": limited["error"],
        "text": limited.get("text", ""),
        "explained": limited.get("explained", {}),
        "steps": limited["steps"],
    }
    steps = counted(limited["steps"])
    if limited["error"] or not steps:
        return row
    used = [step["host_used_bytes"] for step in steps]
    phases = {
        phase: statistics.mean(step["used_in"][phase] for step in steps)
        for phase in steps[0]["used_in"]
    }
    floor_ms = statistics.mean(s["ms"] for s in counted(floor["steps"]))
    return {
        **row,
        "used_share": statistics.mean(used) / missing_bytes,
        "used_share_median": statistics.median(used) / missing_bytes,
        "held_share": max(s["most_host_bytes"] for s in steps) / missing_bytes,
        "held_last_share": steps[-1]["most_host_bytes"] / missing_bytes,
        "slower": statistics.mean(step["ms"] for step in steps) / floor_ms,
        "floor_ms": floor_ms,
        "rescues": statistics.mean(step["rescues"] for step in steps),
        "used_in_bytes": phases,
    }


def peak_of(floor: Row) -> int:
    return max(step["need_bytes"] for step in floor["steps"])


def limit_of(floor: Row, factor: float) -> int:
    return int(peak_of(floor) / factor)


# ---- Output

HEAD = (
    f"{'program':26} {'x':>3} {'needs':>6} {'short':>6} {'used':>7} {'median':>7} "
    f"{'held':>5} {'last':>5} {'slower':>6} {'resc.':>5} {'wall':>4}  "
    "on host pages in"
)


def line(row: Row) -> str:
    sizes = f"{row['peak_bytes'] / GIB:6.2f} {row['missing_bytes'] / GIB:6.2f}"
    start = f"{row['name']:26} {row['factor']:3} {sizes}"
    if "used_share" not in row:
        told = row["error"].strip().splitlines() or ["too few steps"]
        errors = [x for x in told if "Error: " in x] or told[-1:]
        return f"{start} died: {errors[-1][:80]}"
    where = ", ".join(
        f"{phase} {bytes_used / MIB:.0f}"
        for phase, bytes_used in row["used_in_bytes"].items()
        if bytes_used >= MIB / 2
    )
    return (
        f"{start} {row['used_share']:7.2%} {row['used_share_median']:7.2%} "
        f"{row['held_share']:5.2f} {row['held_last_share']:5.2f} "
        f"{row['slower']:6.2f} {row['rescues']:5.1f} "
        f"{row['wall_s']:4.0f}  {where and where + ' MiB'}"
    )


def summary(rows: list[Row]) -> Iterator[str]:
    """Whether the bars are kept, by factor."""
    for factor in FACTORS:
        of_factor = [row for row in rows if row["factor"] == factor]
        if not of_factor:
            continue
        used = [row.get("used_share", 1.0) <= USED_MAX for row in of_factor]
        held, last = (
            [row.get(key, 9.9) <= HELD_MAX for row in of_factor]
            for key in ("held_share", "held_last_share")
        )
        yield (
            f"{factor} x: {sum(used)} of {len(used)} use at most {USED_MAX:.0%} of the "
            f"missing bytes on host pages (bar: {USED_SHARE[factor]:.0%}), "
            f"{sum(held)} hold at most {HELD_MAX} times these (bar: {HELD_SHARE:.0%}), "
            f"{sum(last)} in their last step"
        )


def show_steps(found: Row) -> None:
    """Each step of a run."""
    for i, step in enumerate(found["steps"]):
        where = {k: f"{v / MIB:.1f}" for k, v in step["used_in"].items() if v}
        used_bytes = step["host_used_bytes"]
        print(
            f"step {i + 1:2} {step['kind']:10} {step['ms']:9.1f} ms, needs "
            f"{step['need_bytes'] / GIB:6.3f} GiB, used {used_bytes / MIB:8.1f} "
            f"MiB on host pages {where}, {step['rescues']} rescues, held "
            f"{step['most_host_bytes'] / MIB:.0f} MiB, sent "
            f"{step['sent_bytes'] / MIB:.0f} MiB"
        )
    for place, used_bytes in Counter(found.get("where", {})).most_common(16):
        print(f"    {used_bytes / MIB:9.1f} MiB  {place}")
    print(found.get("text", "") or "no plan")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", help="names of programs; of one, each step is shown"
    )
    parser.add_argument("--factor", type=float, nargs="+", default=list(FACTORS))
    parser.add_argument("--out", type=Path, help="file for a JSON line of each run")
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument(
        "--table", type=Path, help="shows what --out wrote, the worst first"
    )
    parser.add_argument(
        "--needs", action="store_true", help="what no plan can do without"
    )
    parser.add_argument(
        "--where", action="store_true", help="lines and nodes that use host pages"
    )
    return parser.parse_args()


def show_needs(name: str, needs: Row) -> None:
    """What no plan can do without."""
    if "operator" in needs:
        print(
            f"{name:26} largest operator {needs['operator_bytes'] / GIB:6.2f} GiB "
            f"({needs['operator']}), kept {needs['kept_bytes'] / GIB:6.2f} GiB",
            flush=True,
        )
    else:
        print(f"{name:26} {needs['error'].strip().splitlines()[-1]}")


def show_table(rows: list[Row]) -> None:
    """All of them, the worst first."""
    print(HEAD)
    for row in sorted(rows, key=lambda row: -row.get("used_share", 99.0)):
        print(line(row))
    print("\n".join(summary(rows)))


def main() -> None:
    options = parse()
    if options.table:
        with options.table.open() as file:
            return show_table([json.loads(x) for x in file])
    # What libraries ask at import must not initialize CUDA: no fork survives that.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    oomph.simulate.load(CARD)  # before PyTorch is imported
    chosen = programs()
    if options.list:
        return print("\n".join(chosen))
    if options.only:
        chosen = {name: chosen[name] for name in options.only}
    if len(chosen) > 2:
        for module in PRELOADED:
            importlib.import_module(module)
    from needs import needs_of
    from steps import measure

    apart = functools.partial(run_apart, log=options.log)
    if options.needs:
        for name, program in chosen.items():
            show_needs(name, apart(needs_of, program, OFFLOAD))
        return None
    print(HEAD, flush=True)
    rows = []
    for name, program in chosen.items():
        floor = apart(measure, program, OFFLOAD)
        if floor["error"] or not counted(floor["steps"]):
            print(f"{name} without a limit: {floor['error'] or 'too few steps'}")
            continue
        for factor in options.factor:
            limit = f",device_limit:{limit_of(floor, factor)}"
            found = apart(measure, program, OFFLOAD + limit, options.where)
            rows.append(compare(name, factor, floor, found))
            if len(chosen) == 1:
                show_steps(found)
            print(line(rows[-1]), flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(summary(rows)))
    return None


if __name__ == "__main__":
    main()
