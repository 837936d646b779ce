"""What helps after an error, most likely first, and what cannot, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from oomph.doctor import helps
from oomph.doctor.cases import Advice, Advised, Case
from oomph.doctor.parse import FORMS

HELPS_MAX = 3
Rule = Callable[[Case], Iterable[Advice]]


def advise(case: Case) -> Advised:
    """What to do about an error."""
    form = case.found.form
    rules = _RULES.get(form, helps.OTHERS)
    found = [*FORMS[form].helps, *(advice for rule in rules for advice in rule(case))]
    found.sort(key=lambda advice: -advice.weight)
    cannot = list(_CANNOT[form](case)) if form in _CANNOT else []
    if FORMS[form].memory == "host":
        cannot.append(_NOT_THE_GPU)
    return Advised(found[:HELPS_MAX], cannot, list(_unknown(case)))


_RULES: dict[str, tuple[Rule, ...]] = {
    "pytorch": helps.PYTORCH,
    "async": helps.ASYNC,
    "mps": helps.MPS,
}


# ---- What cannot help


def _cannot(case: Case) -> Iterator[Advice]:
    now = case.account
    settings = "expandable_segments, max_split_size_mb"
    if now.limit_decides:
        yield Advice("freeing memory of the device", "this process reached its limit")
    elif now.fragmentation_possible is False and now.cached and case.short:
        yield Advice(
            settings,
            f"fragmentation is not the cause: {case.short} is missing, they could free "
            f"at most {now.cached}, and {now.missing_defragmented} would still be "
            "missing",
        )
    elif case.expandable and now.fragmentation_possible:
        yield Advice("expandable_segments", "the log shows that it was on already")
    if "oomph" not in case.found.flags and "absurd" not in case.found.flags:
        yield Advice(
            "torch.cuda.empty_cache()",
            "PyTorch gave back every whole free block before it raised the error",
        )
    outside = now.outside
    if now.overcommitted:
        return
    if outside and case.short and case.short.surely_above(outside):
        yield Advice(
            "ending other processes", f"all outside PyTorch is {outside}, too little"
        )
    elif case.place.phase == "evaluation":
        yield Advice("fewer evaluation steps", "one of them is the peak")


def _cannot_async(case: Case) -> Iterator[Advice]:
    yield Advice(
        "expandable_segments, max_split_size_mb",
        "cudaMallocAsync ignores them; the driver joins what is free",
    )


_NOT_THE_GPU = Advice(
    "a GPU's settings, empty_cache(), offloading",
    "it is the host's memory that ran out",
)
_CANNOT: dict[str, Rule] = {"pytorch": _cannot, "async": _cannot_async}


def _unknown(case: Case) -> Iterator[str]:
    now, found = case.account, case.found
    form = FORMS[found.form]
    if form.doubt:
        yield form.doubt
    elif not form.fields and not found.amounts and form.memory != "host":
        yield "any number: this kind of error has none"
    if found.form not in ("pytorch", "async"):
        return
    if now.requested is None and "absurd" not in found.flags:
        yield "how much was asked for"
    elif now.free is None and now.allowed is None and "absurd" not in found.flags:
        silent = ": the driver of Windows (WSL) does not say" if case.on_wsl else ""
        yield f"how much was free, so what is missing{silent}"
    elif found.form == "async":
        yield "what the driver's pool caches, and what is outside it"
    elif now.cached is None and "absurd" not in found.flags:
        yield "how much PyTorch caches, so whether fragmentation is the cause"
    elif found.processes and now.likely_self is None and now.own_outside is None:
        yield ("which of the processes is this one: a container shows it by another id")
    elif now.outside_is_much and not now.others and not now.limit_decides:
        yield "who holds the memory outside PyTorch"
    refused = now.room and now.requested and now.room.surely_above(now.requested)
    if refused and "missing" not in found.amounts and not now.limit_decides:
        yield "why the driver refused although enough was free"
    if not case.place.line and not case.place.phase:
        yield "where: there is no traceback before the error"
