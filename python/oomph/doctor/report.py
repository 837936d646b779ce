"""What ``oomph doctor`` says of a log: as lines for people, and as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from oomph.base.tables import labelled
from oomph.doctor.advice import advise
from oomph.doctor.amounts import GIB, MIB, Amount
from oomph.doctor.cases import Advice, Advised, Case
from oomph.doctor.finder import Search, Sighting
from oomph.doctor.found import Found
from oomph.doctor.parse import FORMS
from oomph.doctor.verdict import (
    VOCABULARIES,
    Account,
    Shape,
    account,
    asked_range,
    shapes_of,
)

_OF_PYTORCH = ("pytorch", "async", "mps", "summary")
SHOWN_MAX = 8  # different errors; --json has all
_RUNS_MAX = 16  # of numbers that follow each other
LINES_MAX = 12
_LABEL_WIDTH = 10  # in characters: the same for all errors of a log
FindPlace = Callable[[int], tuple[str, int]]  # a line's log, and its number there
LOOKED_FOR = (
    "errors of PyTorch's allocators since 2018 (CUDA, HIP, XPU, MPS), also in part; "
    "of oomph; of CUDA and its libraries; of host and shared memory; processes that "
    "were killed (SIGKILL, exit code 137, oom-kill); vLLM, llama.cpp, CuPy, ONNX "
    "Runtime, JAX, TensorFlow"
)


def case_of(sighting: Sighting, search: Search) -> Case:
    """All that is known of an error that a log has."""
    found, place, sizes = sighting.found, sighting.place, search.traces.sizes
    if place.in_loss and not sizes.get("vocabulary"):
        known = {size: f"vocab of {model}" for size, model in VOCABULARIES.items()}
        sizes = {**sizes, "vocabulary": known}
    shapes = shapes_of(found, sizes, place.shapes)
    return Case(found, account(found), place, shapes, search.traces, sighting.line)


# ---- As lines


def in_log(name: str) -> FindPlace:
    """Where lines are that are all of one log."""
    return lambda line: (name, line)


def text(search: Search, place: FindPlace) -> str:
    """Explains all errors of a log, or of several.

    Args:
        search: What was found.
        place: Which log a line is of, and its number there, for the first lines.

    Returns:
        At most twelve lines for each error, with an empty one between.
    """
    parts = [_explained(s, search, place) for s in search.errors[:SHOWN_MAX]]
    more = len(search.errors) - SHOWN_MAX
    if more > 0:
        parts.append(f"{more} other errors are not shown; --json has them")
    return "\n\n".join(parts)


def nothing_found(search: Search, name: str) -> str:
    """Says that a log has no such error, and what was looked for."""
    said = [f"{name}: no out-of-memory error in {_counted(search.line_count, 'line')}."]
    if search.mentions:
        times = _counted(search.mentions, "time")
        said.append(f"The words are there ({times}), but no error.")
    return " ".join([*said, f"Looked for: {LOOKED_FOR}."])


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def _explained(sighting: Sighting, search: Search, place: FindPlace) -> str:
    case = case_of(sighting, search)
    advised = advise(case)
    rows = [
        ("asked for", _asked(case)),
        ("says", _facts(case.found)),
        ("in PyTorch", _inside(case.account, sighting)),
        ("outside", _outside(case.account, case.found.backend)),
        ("where", _where(case)),
        ("looks like", _looks_like(case.shapes)),
        *((str(i + 1), _said(a)) for i, a in enumerate(advised.helps)),
        *(("no help", _said(advice)) for advice in advised.cannot),
        ("not known", "; ".join(advised.unknown)),
    ]
    shown = [(label, said) for label, said in rows if said]
    while len(shown) >= LINES_MAX:  # the last reasons are the least
        refused = [i for i, (label, _) in enumerate(shown) if label == "no help"]
        del shown[refused[-1]]
    return "\n".join([_title(sighting, place), *labelled(shown, _LABEL_WIDTH)])


def _title(sighting: Sighting, place: FindPlace) -> str:
    found = sighting.found
    name, line = place(sighting.line)
    form = "pytorch_part" if "part" in found.flags else found.form
    title = FORMS[form].title.format(backend=found.backend, detail=found.detail)
    said = [f"{name}:{line}: {title}"]
    if sighting.devices:
        said.append(numbered("GPU", sighting.devices))
    if sighting.ranks:
        said.append(numbered("rank", sighting.ranks))
    if sighting.count > 1:
        last_name, last = place(sighting.last_line)
        where = f"in line {last}" if last_name == name else f"at {last_name}:{last}"
        said.append(f"{sighting.count} times, last {where}")
    return ", ".join(said)


def numbered(word: str, numbers: Iterable[int]) -> str:
    """Numbers in words: "rank 3", "ranks 0, 1", "ranks 0 to 5, 7"."""
    listed = sorted({*numbers})
    runs: list[list[int]] = []
    for number in listed:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said = [
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run))
        for run in runs
    ]
    more = ["…"] if len(said) > _RUNS_MAX else []
    plural = "s" if len(listed) > 1 else ""
    return f"{word}{plural} {', '.join([*said[:_RUNS_MAX], *more])}"


def _asked(case: Case) -> str:
    now = case.account
    if now.requested is None:
        return ""
    said = str(now.requested)
    asked = asked_range(case.found)
    if asked and asked[1] > 4 * asked[0]:
        said += f" from the driver, for a tensor of {_span(*asked)}"
    if now.room is None or now.missing is None:
        return said
    of = f" of {now.total}" if now.total else ""
    missing = "" if case.short is None else f": {now.missing} missing"
    if now.limit_decides:
        left = now.room if case.short else "less"
        return f"{said}, {left} left of {now.allowed} allowed{missing}"
    free = now.free if now.free else now.room
    although = "" if missing else "although "
    return f"{said}, {although}{free}{of} are free{missing}"


def _facts(found: Found) -> str:
    """What the text says that no other row shows."""
    shown = {"requested", "total", "free"}
    if found.form in _OF_PYTORCH:
        shown = set(found.amounts) - {"peak"}
    said = [f"{name} {value}" for name, value in found.facts.items()]
    said += [
        f"{a} {name}" for name, a in found.amounts.items() if a and name not in shown
    ]
    return ", ".join(said)


def _alike(*amounts: Amount | None) -> list[str]:
    """Amounts of one sum: all in GiB where one of them is not known to the MiB."""
    if not any(a and str(a).startswith("0.") for a in amounts):
        return [str(a) for a in amounts]
    return [
        str(a) if a is None or a.middle_bytes < 5 * MIB else _gib(a) for a in amounts
    ]


def _gib(amount: Amount) -> str:
    return f"{amount.middle_bytes / GIB:.2f} GiB"


def _span(low: int, high: int) -> str:
    low_mib, high_mib = low >> 20, high >> 20
    return f"{low_mib} to {high_mib} MiB" if low_mib else f"at most {high_mib} MiB"


def _inside(now: Account, sighting: Sighting) -> str:
    if sighting.found.form not in _OF_PYTORCH:
        return ""
    if now.allocated is None:
        return f"{now.reserved} reserved" if now.reserved else ""
    private = sighting.found.amount("private")
    within = f" ({private} of it free in private pools)" if private else ""
    if now.reserved is None or now.cached is None:
        reserved = f"{now.reserved} reserved, " if now.reserved else ""
        return f"{reserved}{now.allocated} in tensors{within}"
    reserved, allocated, cached = _alike(now.reserved, now.allocated, now.cached)
    said = f"{reserved} reserved = {allocated} in tensors{within} + {cached} cached"
    host = sighting.found.amount("host")
    if host:
        said += f"; {host} of it on the host"
    if now.overcommitted:
        said += "; more than the device has: the rest is in host memory (Windows, WSL)"
    return said


def _outside(now: Account, backend: str) -> str:
    parts = []
    others = now.others[:4]
    outside, total, free, own, unlisted, *theirs = _alike(
        *(now.outside, now.total, now.free, now.own_outside, now.unlisted),
        *(amount for _, amount in others),
    )
    if now.outside is not None and not now.overcommitted:
        parts.append(f"{outside} = {total} - {free} free - PyTorch's")
    if now.own_outside is not None:
        parts.append(f"{own} this process's own ({backend}, libraries)")
    if now.likely_self is not None:
        parts[-1] += f" = process {now.likely_self} (its id outside the container)"
    parts.extend(
        f"{size} process {process}"
        for (process, _), size in zip(others, theirs, strict=True)
    )
    if now.unlisted is not None and now.unlisted.low_bytes > 0:
        parts.append(f"{unlisted} in no process that the text names")
    if now.outside is not None and len(parts) == 1 and not now.overcommitted:
        parts.append(f"{backend}, libraries and other processes")
    return (
        ": ".join([parts[0], ", ".join(parts[1:])])
        if len(parts) > 1
        else "".join(parts)
    )


def _where(case: Case) -> str:
    line, phase = case.place.line, case.place.phase
    return ", in ".join(part for part in (line, phase) if part)


def _looks_like(shapes: list[Shape]) -> str:
    return "; or ".join(str(shape) for shape in shapes[:2])


def _said(advice: Advice) -> str:
    return f"{advice.action}: {advice.why}"


# ---- As data


def data(search: Search, name: str, place: FindPlace) -> dict[str, Any]:
    """All that was found, and all that follows from it.

    Args:
        search: What was found.
        name: The log's, or that of the folder of several.
        place: As for :func:`text`.
    """
    return {
        "log": name,
        "lines": search.line_count,
        "errors": [_as_dict(sighting, search, place) for sighting in search.errors],
        "errors_not_kept": search.uncounted,
        "sizes": {
            meaning: {name: size for size, name in known.items()}
            for meaning, known in search.traces.sizes.items()
        },
        "seen": sorted(search.traces.seen),
        "gpus_mib": search.traces.gpus,
        "looked_for": LOOKED_FOR,
    }


def _as_dict(sighting: Sighting, search: Search, place: FindPlace) -> dict[str, Any]:
    log, line = place(sighting.line)
    last_log, last_line = place(sighting.last_line)
    case = case_of(sighting, search)
    found, now, advised = case.found, case.account, advise(case)
    return {
        "form": found.form,
        "fatal": found.form != "warning",
        "memory": FORMS[found.form].memory,
        "backend": found.backend,
        "detail": found.detail,
        "flags": sorted(found.flags),
        "text": sighting.text,
        "count": sighting.count,
        "log": log,
        "line": line,
        "last_log": last_log,
        "last_line": last_line,
        "devices": sorted(sighting.devices),
        "ranks": sorted(sighting.ranks),
        "amounts": {
            key: amount.as_dict() if amount else None
            for key, amount in found.amounts.items()
        },
        "facts": found.facts,
        "processes": {
            str(key): amount.as_dict() if amount else None
            for key, amount in found.processes.items()
        },
        "asked_between_bytes": asked_range(found),
        "account": _account_as_dict(now),
        "where": case.place.line,
        "phase": case.place.phase,
        "shapes": [str(shape) for shape in case.shapes],
        **_advised_as_dict(advised),
    }


def _account_as_dict(now: Account) -> dict[str, Any]:
    names = (
        *("missing", "missing_defragmented", "room", "reserved", "cached", "outside"),
        *("own_outside", "unlisted"),
    )
    amounts = {name: getattr(now, name) for name in names}
    return {
        **{name: a.as_dict() if a else None for name, a in amounts.items()},
        "likely_self": now.likely_self,
        "limit_decides": now.limit_decides,
        "overcommitted": now.overcommitted,
        "fragmentation_possible": now.fragmentation_possible,
    }


def _advised_as_dict(advised: Advised) -> dict[str, Any]:
    def listed(all_of_them: list[Advice]) -> list[dict[str, str]]:
        return [{"action": a.action, "why": a.why} for a in all_of_them]

    return {
        "helps": listed(advised.helps),
        "cannot_help": listed(advised.cannot),
        "not_known": advised.unknown,
    }
