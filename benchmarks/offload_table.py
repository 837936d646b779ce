"""The comparison of ways to train on a card that is too small, as tables.

The results lie in offload.json, from which offload.md is written. Each training's can
be put in by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Any

import seed_scenario
from support import GIB, Result
from ways import BY_HAND, CARD, TRAININGS, ByHand, Point, Run

Data = dict[str, Any]

_NAMES = {
    "checkpoint": "checkpointing of every block",
    "checkpoint2": "of every second block",
    "save_on_cpu": "`save_on_cpu`",
    "evict": "evicted optimizer state",
}
_ORDER = [training.name for training in TRAININGS]


def keep(folder: Path, **results: list[Data]) -> None:
    """Puts results in place of those with the same names, and writes the tables.

    Args:
        folder: Where offload.json and offload.md are, or will be.
        results: ``points`` or ``scenario``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "offload.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    for key, new in results.items():
        names = {entry["program"] for entry in new}
        old = [e for e in data.get(key, []) if e["program"] not in names]
        data[key] = [*old, *new]
    data["points"] = sorted(data.get("points", []), key=_place)
    path.write_text(json.dumps(data, indent=1) + "\n")
    (folder / "offload.md").write_text(markdown(data))


def _place(point: Data) -> tuple[int, float]:
    return _ORDER.index(point["program"]), point["factor"]


def data_of_case(case: seed_scenario.Case, result: Result) -> Data:
    return {
        "program": f"{case.name}, {case.allocator}",
        "name": case.name,
        "allocator": case.allocator,
        "finished": result.code == 0,
        "died_in_block": seed_scenario.block(result),
        "wanted_gib": seed_scenario.wanted_gib(result),
        **{key: result.stats.get(key) for key in _KEYS},
    }


_KEYS = (
    *("allocated_bytes.all.peak", "device_bytes_peak", "host_bytes_peak", "rescues"),
    *("rescues_last_steps", "sent_bytes", "host_predicted_bytes", "step_ms"),
)


def data_of_point(point: Point) -> Data:
    ways = {"oomph": _data(point.oomph)}
    ways |= {way: _data_by_hand(x) for way, x in point.by_hand.items()}
    ways["accumulate"] = _data_by_hand(point.halves)
    return {
        "program": point.training.name,
        "factor": point.factor,
        "peak_bytes": point.floor.peak_bytes,
        "limit_bytes": point.limit_bytes,
        "floor_ms": point.floor.step_ms,
        "bound_ms": point.bound_ms,
        "bound_of_parts_ms": point.bound_of_parts_ms,
        "fastest_by_hand": point.fastest_by_hand,
        "steps_until_calm": point.steps_until_calm,
        "offloaded_share": _number(point.offloaded_share),
        "sent_share": _number(point.sent_share),
        "idle_waiting_share": point.idle_share("both", "waiting_ms"),
        "idle_out_share": point.idle_share("out", "idle_ms"),
        "idle_in_share": point.idle_share("in", "idle_ms"),
        "rescues": [step["rescues"] for step in point.oomph.steps],
        "ways": ways,
    }


def _data(run: Run) -> Data:
    return {
        "finished": not run.died,
        "step_ms": _number(run.step_ms),
        "error": run.error,
    }


def _data_by_hand(way: ByHand) -> Data:
    return {
        **_data(way.limited),
        "has_offload": way.has_offload,
        "unlimited_ms": way.unlimited.step_ms,
        "unlimited_peak_bytes": way.unlimited.peak_bytes,
    }


def _number(value: float) -> float | None:
    """Null in JSON where there is none."""
    return value if isfinite(value) else None


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _time(way: Data) -> str:
    """Milliseconds of a way; with offload where it dies alone."""
    if not way["finished"]:
        return "dies"
    return f"{way['step_ms']:.0f}" + ("+" if way.get("has_offload") else "")


def _fastest(point: Data) -> str:
    way = point["fastest_by_hand"]
    return f"{_time(point['ways'][way])} ({_NAMES[way]})" if way else "-"


def _ratio(point: Data, to_ms: float | None) -> str:
    oomph_ms = point["ways"]["oomph"]["step_ms"]
    return f"{oomph_ms / to_ms:.2f}" if oomph_ms and to_ms else "-"


def _steps(points: list[Data]) -> str:
    heads = ["program", "x card", "no limit", "bound", "oomph", "/ bound"]
    return _table(
        [*heads, "fastest by hand", "oomph / fastest"],
        (
            [
                *_named(point),
                f"{point['floor_ms']:.0f}",
                f"{point['bound_ms']:.0f}",
                _time(point["ways"]["oomph"]),
                _ratio(point, point["bound_ms"]),
                _fastest(point),
                _ratio(point, _fastest_ms(point)),
            ]
            for point in points
        ),
    )


def _fastest_ms(point: Data) -> float | None:
    way = point["fastest_by_hand"]
    return point["ways"][way]["step_ms"] if way else None


def _named(point: Data) -> list[str]:
    return [point["program"], f"{point['factor']}"]


def _by_hand(points: list[Data]) -> str:
    heads = ["program", "x card", "bound, any part", "oomph"]
    return _table(
        [*heads, *(_NAMES[way] for way in BY_HAND), "half the batch, twice"],
        (
            [
                *_named(point),
                f"{point['bound_of_parts_ms']:.0f}",
                *(_time(way) for way in point["ways"].values()),
            ]
            for point in points
        ),
    )


def _figures(points: list[Data]) -> str:
    heads = ["program", "x card", "steps until calm", "on host / missing"]
    return _table(
        [*heads, "sent / missing", "idle while ready", "idle out", "idle in"],
        (
            [
                *_named(point),
                f"{point['steps_until_calm']}",
                f"{point['offloaded_share']:.2f}",
                f"{point['sent_share']:.2f}",
                f"{point['idle_waiting_share']:.1%}",
                f"{point['idle_out_share']:.1%}",
                f"{point['idle_in_share']:.1%}",
            ]
            for point in points
            if point["ways"]["oomph"]["finished"]
        ),
    )


def _without_limit(points: list[Data]) -> str:
    """What each way needs and takes without a limit, of each program."""
    programs = {point["program"]: point for point in points}.values()
    return _table(
        ["program", "plain", *(_NAMES[way] for way in BY_HAND if way != "evict")],
        (
            [
                point["program"],
                f"{point['peak_bytes'] / GIB:.2f} GiB, {point['floor_ms']:.0f} ms",
                *(
                    f"{way['unlimited_peak_bytes'] / GIB:.2f} GiB, "
                    f"{way['unlimited_ms']:.0f} ms"
                    for way in (point["ways"][w] for w in BY_HAND if w != "evict")
                ),
            ]
            for point in programs
        ),
    )


def _scenario(cases: list[Data]) -> str:
    return _table(
        ["program", "allocator", "outcome", "needs", "on host", "rescues", "step"],
        ([case["name"], case["allocator"], *_outcome(case)] for case in cases),
    )


def _outcome(case: Data) -> list[str]:
    died = f"dies, {case['died_in_block']} blocks run or begun, wants "
    step_ms = case["step_ms"] or 0
    return [
        "finishes" if case["finished"] else f"{died}{case['wanted_gib']:.2f} GiB",
        f"{case['allocated_bytes.all.peak'] / GIB:.2f} GiB",
        f"{case['host_bytes_peak'] / GIB:.2f} GiB",
        " ".join(map(str, case["rescues_last_steps"] or [])) or "-",
        f"{step_ms:.0f} ms" if step_ms else "-",
    ]


def markdown(data: Data) -> str:
    """All of it for people."""
    points = data["points"]
    return f"""# Training that needs more than the card

Computed on the virtual clock of a simulated card (`{CARD}`), not measured on a GPU.
Written by `python -m pytest benchmarks/test_offload.py --tables benchmarks/results`;
with `-k gpt` for one program.

The card is limited to the program's peak without a limit, divided by 1.2 to 4.
Milliseconds a step, the mean of the last steps. *Bound*: the best mixture of keeping,
sending and recomputing whole blocks, by a linear program over the recorded step
([what it assumes](../bound.py)). *By hand*: run with oomph's allocator and
`offload:off`. What dies alone, with `CUDA out of memory`, runs with offload too, which
*+* marks. *Dies*: even so.

{_steps(points)}

## All ways

*Bound, any part*: as above if any part of a block may be recomputed by itself, with no
regard to what that needs. Half the batch, twice, is another computation for models with
batch normalization, and the program has to be changed for it.

{_by_hand(points)}

## Without a limit

{_without_limit(points)}

## How closely memory is kept

*Steps until calm*: steps after the first rescue until the last one. *On host*: the most
bytes at a time, sent ahead of need or put there at once; *sent*: those of a step that
were copied out, each storage once, the optimizer's state among them. *Idle while
ready*: time in which the link did nothing either way while a copy could have run (what
it copies was computed, or the memory for it was free in the order of the step), to the
time from the first copy to the last; *idle out*, *idle in*: all idle time between the
copies one way.

{_figures(points)}

## GPT-2 124 M on 11.69 GiB (`{seed_scenario.CARD}`)

*Rescues*: of each step.

{_scenario(data.get("scenario", []))}
"""
