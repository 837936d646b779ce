"""What ``oomph doctor`` says of a log: as lines for people, and as data."""

from __future__ import annotations

from typing import Any

from oomph.doctor.advice import advise
from oomph.doctor.cases import Advice, Advised, Case
from oomph.doctor.finder import Search, Sighting
from oomph.doctor.forms import FORMS
from oomph.doctor.verdict import Account, Shape, account, asked_range, shapes_of

SHOWN_MAX = 8  # different errors; --json has all
LINES_MAX = 12
LOOKED_FOR = (
    "PyTorch's errors since 2018 (CUDA, HIP, XPU), whole or in part; cudaMallocAsync; "
    "oomph; CUDA error: out of memory; CUBLAS_STATUS_ALLOC_FAILED and its like; "
    "DefaultCPUAllocator; std::bad_alloc; the warning of PyTorch 2.13"
)


def case_of(sighting: Sighting, search: Search) -> Case:
    """All that is known of an error that a log has."""
    found = sighting.found
    shapes = shapes_of(found, search.traces.sizes, sighting.place.shapes)
    return Case(
        found, account(found), sighting.place, shapes, search.traces, sighting.line
    )


# ---- As lines


def text(search: Search, name: str) -> str:
    """Explains all errors of a log.

    Args:
        search: What was found.
        name: The log's, for the first lines.

    Returns:
        At most twelve lines for each error, with an empty one between.
    """
    parts = [_explained(s, search, name) for s in search.errors[:SHOWN_MAX]]
    more = len(search.errors) - SHOWN_MAX
    if more > 0:
        parts.append(f"{more} other errors are not shown; --json has them")
    return "\n\n".join(parts)


def nothing_found(search: Search, name: str) -> str:
    """Says that a log has no such error, and what was looked for."""
    said = [f"{name}: no out-of-memory error in {search.line_count} lines."]
    if search.mentions:
        said.append(f"The words are there ({search.mentions} times), but no error.")
    if search.out_of_scope:
        said.append(
            "Errors of TensorFlow, JAX and MPS are there; they are not explained."
        )
    return " ".join([*said, f"Looked for: {LOOKED_FOR}."])


def _explained(sighting: Sighting, search: Search, name: str) -> str:
    case = case_of(sighting, search)
    advised = advise(case)
    rows = [
        ("asked for", _asked(case)),
        ("in PyTorch", _inside(case.account, sighting)),
        ("outside", _outside(case.account)),
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
    lines = [f"  {label:<11} {said}" for label, said in shown]
    return "\n".join([_title(sighting, name), *lines])


def _title(sighting: Sighting, name: str) -> str:
    found = sighting.found
    title = FORMS[found.form].title
    if found.form == "pytorch":
        part = ", a part of the text" if "part" in found.flags else ""
        title = f"{found.backend} out of memory{part}"
    elif found.form == "library":
        title = found.detail
    said = [f"{name}:{sighting.line}: {title}"]
    if sighting.devices:
        said.append(_numbered("GPU", sighting.devices))
    if sighting.ranks:
        said.append(_numbered("rank", sighting.ranks))
    if sighting.count > 1:
        said.append(f"{sighting.count} times, last in line {sighting.last_line}")
    return ", ".join(said)


def _numbered(word: str, numbers: set[int]) -> str:
    listed = sorted(numbers)
    if len(listed) == 1:
        return f"{word} {listed[0]}"
    if len(listed) > 2 and listed[-1] - listed[0] == len(listed) - 1:
        return f"{word}s {listed[0]} to {listed[-1]}"
    return f"{word}s {', '.join(map(str, listed[:16]))}"


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
    if now.limit_decides:
        return (
            f"{said}, {now.room} left of {now.allowed} allowed: {now.missing} missing"
        )
    if case.short is None:
        return f"{said}, although {now.room}{of} are free"
    return f"{said}, {now.room}{of} are free: {now.missing} missing"


def _span(low: int, high: int) -> str:
    low_mib, high_mib = low >> 20, high >> 20
    return f"{low_mib} to {high_mib} MiB" if low_mib else f"at most {high_mib} MiB"


def _inside(now: Account, sighting: Sighting) -> str:
    if now.allocated is None:
        return ""
    private = sighting.found.amount("private")
    within = f" ({private} of it free in private pools)" if private else ""
    if now.reserved is None or now.cached is None:
        return f"{now.allocated} in tensors{within}"
    said = f"{now.reserved} reserved = {now.allocated} in tensors{within}"
    said += f" + {now.cached} cached"
    host = sighting.found.amount("host")
    if host:
        said += f"; {host} of it on the host"
    if now.overcommitted:
        said += "; more than the device has: the rest is in host memory (Windows, WSL)"
    return said


def _outside(now: Account) -> str:
    parts = []
    if now.outside is not None and not now.overcommitted:
        sum_ = f"{now.outside} = {now.total} - {now.free} free - PyTorch's"
        parts.append(sum_)
    if now.own_outside is not None:
        parts.append(f"{now.own_outside} this process's own (CUDA, libraries)")
    if now.likely_self is not None:
        parts[-1] += (
            f", which must be process {now.likely_self} (containers have other ids)"
        )
    parts.extend(f"{amount} process {process}" for process, amount in now.others[:4])
    if now.unlisted is not None and now.unlisted.low_bytes > 0:
        parts.append(f"{now.unlisted} in no process that the text names")
    if now.outside is not None and len(parts) == 1 and not now.overcommitted:
        parts.append("CUDA, libraries and other processes")
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


def data(search: Search, name: str) -> dict[str, Any]:
    """All that was found, and all that follows from it."""
    return {
        "log": name,
        "lines": search.line_count,
        "errors": [_as_dict(sighting, search) for sighting in search.errors],
        "errors_not_kept": search.uncounted,
        "errors_out_of_scope": search.out_of_scope,
        "sizes": {
            meaning: {name: size for size, name in known.items()}
            for meaning, known in search.traces.sizes.items()
        },
        "seen": sorted(search.traces.seen),
        "looked_for": LOOKED_FOR,
    }


def _as_dict(sighting: Sighting, search: Search) -> dict[str, Any]:
    case = case_of(sighting, search)
    found, now, advised = case.found, case.account, advise(case)
    return {
        "form": found.form,
        "fatal": found.form != "warning",
        "backend": found.backend,
        "detail": found.detail,
        "flags": sorted(found.flags),
        "text": sighting.text,
        "count": sighting.count,
        "line": sighting.line,
        "last_line": sighting.last_line,
        "devices": sorted(sighting.devices),
        "ranks": sorted(sighting.ranks),
        "amounts": {
            key: amount.as_dict() if amount else None
            for key, amount in found.amounts.items()
        },
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
