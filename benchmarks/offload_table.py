"""The comparison of ways to train on a card that is too small, as tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import seed_scenario
from support import GIB, Result
from ways import CARD, OTHERS, Point, Run

_NAMES = {
    "oomph": "oomph",
    "save_on_cpu": "`save_on_cpu`",
    "checkpoint": "checkpointing of every block",
    "accumulate": "half the batch, twice",
}


def data(points: list[Point], cases: dict[seed_scenario.Case, Result]) -> str:
    """All of it as JSON."""
    told: dict[str, Any] = {
        "points": [_data(point) for point in points],
        "scenario": [
            {
                "name": case.name,
                "allocator": case.allocator,
                "finished": result.code == 0,
                "died_in_block": seed_scenario.block(result),
                "wanted_gib": seed_scenario.wanted_gib(result),
                **{key: result.stats.get(key) for key in _KEYS},
            }
            for case, result in cases.items()
        ],
    }
    return json.dumps(told, indent=1) + "\n"


_KEYS = (
    *("allocated_bytes.all.peak", "device_bytes_peak", "host_bytes_peak", "rescues"),
    *("rescues_last_steps", "sent_bytes", "host_predicted_bytes", "step_ms"),
)


def _data(point: Point) -> dict[str, Any]:
    ways = {
        way: {
            "finished": not run.died,
            "step_ms": None if run.died else run.step_ms,
            "error": run.error,
        }
        for way, run in point.runs.items()
    }
    alone = {
        way: {"step_ms": run.step_ms, "peak_bytes": run.peak_bytes}
        for way, run in point.without.items()
    }
    return {
        "program": point.training.name,
        "factor": point.factor,
        "peak_bytes": point.floor.peak_bytes,
        "limit_bytes": point.limit_bytes,
        "floor_ms": point.floor.step_ms,
        "bound_ms": point.bound_ms,
        "steps_until_calm": point.steps_until_calm,
        "offloaded_share": point.offloaded_share,
        "sent_share": point.sent_share,
        "idle_waiting_share": point.idle_share("both", "waiting_ms"),
        "idle_out_share": point.idle_share("out", "idle_ms"),
        "idle_in_share": point.idle_share("in", "idle_ms"),
        "rescues": [step["rescues"] for step in point.oomph.steps],
        "ways": ways,
        "without_limit": alone,
    }


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _time(run: Run, without: Run) -> str:
    """Milliseconds, or what it would take if it did not die."""
    return f"dies ({without.step_ms:.0f})" if run.died else f"{run.step_ms:.0f}"


def _steps(points: list[Point]) -> str:
    heads = ["program", "x card", "no limit", "bound", "oomph", "/ bound"]
    return _table(
        [*heads, *(_NAMES[way] for way in OTHERS), "fastest"],
        (
            [
                point.training.name,
                f"{point.factor}",
                f"{point.floor.step_ms:.0f}",
                f"{point.bound_ms:.0f}",
                f"{point.oomph.step_ms:.0f}",
                f"{point.oomph.step_ms / point.bound_ms:.2f}",
                *(_time(point.runs[way], point.without[way]) for way in OTHERS),
                _NAMES[_fastest(point)],
            ]
            for point in points
        ),
    )


def _fastest(point: Point) -> str:
    finished = [way for way, run in point.runs.items() if not run.died]
    return min(finished, key=lambda way: point.runs[way].step_ms)


def _figures(points: list[Point]) -> str:
    heads = ["program", "x card", "steps until calm", "on host / missing"]
    return _table(
        [*heads, "sent / missing", "idle while ready", "idle out", "idle in"],
        (
            [
                point.training.name,
                f"{point.factor}",
                f"{point.steps_until_calm}",
                f"{point.offloaded_share:.2f}",
                f"{point.sent_share:.2f}",
                f"{point.idle_share('both', 'waiting_ms'):.1%}",
                f"{point.idle_share('out', 'idle_ms'):.1%}",
                f"{point.idle_share('in', 'idle_ms'):.1%}",
            ]
            for point in points
        ),
    )


def _checkpointing(points: list[Point]) -> str:
    """What each gives up in time for what it gains in memory."""
    return _table(
        ["program", "x card", "checkpointing needs", "has", "it adds", "oomph adds"],
        (
            [
                point.training.name,
                f"{point.factor}",
                f"{point.without['checkpoint'].peak_bytes / GIB:.2f} GiB",
                f"{point.limit_bytes / GIB:.2f} GiB",
                f"{point.without['checkpoint'].step_ms - point.floor.step_ms:.0f} ms"
                + (" and dies" if point.runs["checkpoint"].died else ""),
                f"{point.oomph.step_ms - point.floor.step_ms:.0f} ms",
            ]
            for point in points
        ),
    )


def _scenario(cases: dict[seed_scenario.Case, Result]) -> str:
    return _table(
        ["program", "allocator", "outcome", "needs", "on host", "rescues", "step"],
        ([case.name, case.allocator, *_outcome(r)] for case, r in cases.items()),
    )


def _outcome(result: Result) -> list[str]:
    stats = result.stats
    died = f"dies, {seed_scenario.block(result)} blocks run or begun, wants "
    step_ms = stats.get("step_ms", 0)
    return [
        "finishes"
        if result.code == 0
        else f"{died}{seed_scenario.wanted_gib(result):.2f} GiB",
        f"{stats['allocated_bytes.all.peak'] / GIB:.2f} GiB",
        f"{stats['host_bytes_peak'] / GIB:.2f} GiB",
        " ".join(map(str, stats.get("rescues_last_steps") or [])) or "-",
        f"{step_ms:.0f} ms" if step_ms else "-",
    ]


def markdown(points: list[Point], cases: dict[seed_scenario.Case, Result]) -> str:
    """All of it for people."""
    return f"""# Training that needs more than the card

Computed on the virtual clock of a simulated card (`{CARD}`), not measured on a GPU.
Written by `python -m pytest benchmarks/test_offload.py --tables benchmarks/results`.

The card is limited to the program's peak without a limit, divided by 1.2, 1.5 and 2.
Milliseconds a step, the mean of the last steps. *Bound*: max(forward, M / link out) +
max(backward with optimizer, M / link in), M = peak without a limit - limit. *Dies*:
`CUDA out of memory` under the limit; in brackets the time without one. The other ways
run with oomph's allocator and `offload:off`.

{_steps(points)}

## Against checkpointing

Checkpointing computes forward twice, whatever is missing; oomph moves what is missing,
out and back, and no more. So checkpointing is faster where the missing bytes take the
link longer than a second forward takes the card, and it dies where memory is short for
another reason than the blocks' activations: logits, parameters, the optimizer's state
and its temporary tensors. oomph goes on there. Both can be used together.

{_checkpointing(points)}

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

{_scenario(cases)}
"""
