"""What helps after an error of an allocator, with numbers: a rule for each case.

A rule gives advice where its case is there, and nothing where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from oomph.doctor.amounts import ZERO, Amount
from oomph.doctor.cases import Advice, Case

_SMALL_SHARE = 0.02  # of the device: such a request is only the last straw
_FULL_SHARE = 0.85  # of the device in tensors: then it is they that fill it
_WRONG_SIZE = 8  # times the device: no shape is meant to be as large


def _wrong_size(case: Case) -> Iterator[Advice]:
    asked, total = case.account.requested, case.account.total
    if "absurd" in case.found.flags:
        yield Advice("correct the size", "no device has 1 EB: a shape is wrong", 100)
    elif asked and total and asked.low_bytes > _WRONG_SIZE * total.high_bytes:
        times = asked.middle_bytes // total.middle_bytes
        yield Advice(
            "check the shape or the input",
            f"{times} times the device is asked for",
            100,
        )
    elif asked and total and asked.surely_above(total):
        yield Advice(
            "make this one tensor smaller",
            f"{asked} is more than the whole device has ({total})",
            95,
        )


def _limit(case: Case) -> Iterator[Advice]:
    now = case.account
    if now.limit_decides:
        yield Advice(
            "raise the limit of this process",
            f"set_per_process_memory_fraction() allows {now.allowed}, {now.room} of it "
            "is left" + (f"; the device has {now.free} free" if now.free else ""),
            100,
        )


def _other_processes(case: Case) -> Iterator[Advice]:
    now = case.account
    total = now.others_total
    if total is None or case.short is None or not total.high_bytes:
        return
    if now.own_outside is None and now.likely_self is None:
        return  # one of them may be this one
    names = ", ".join(f"{process} ({amount})" for process, amount in now.others[:4])
    enough = total.surely_above(case.short)
    yield Advice(
        f"end or move process {names}",
        f"frees up to {total}; {case.short} is missing" + ("" if enough else " in all"),
        90 if enough else 30,
    )


def _unnamed(case: Case) -> Iterator[Advice]:
    now = case.account
    if case.short is None or now.outside is None or now.limit_decides:
        return
    held = now.outside if now.own_outside is None else now.unlisted
    named = now.others_total if now.own_outside is not None else None
    if held is None or not now.outside_is_much or (named and named.surely_above(ZERO)):
        return
    if held.surely_above(case.short):
        yield Advice(
            "nvidia-smi: see who holds memory outside this PyTorch",
            f"{held} is outside, {case.short} of it is enough; CUDA and libraries need "
            "some of it themselves",
            60,
        )


def _defragment(case: Case) -> Iterator[Advice]:
    now = case.account
    if not now.fragmentation_possible or case.short is None or now.cached is None:
        return
    if case.expandable or now.limit_decides:
        return
    needed = f"of {now.cached} in pieces, {case.short} is needed in one"
    plenty = now.cached.low_bytes > 2 * case.short.high_bytes
    if case.on_linux:
        yield Advice(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PyTorch 2.1 or newer)",
            f"{needed}; how large the pieces are, the text does not say",
            85 if plenty else 59,
        )
    else:
        yield Advice(
            "max_split_size_mb:512 in PYTORCH_CUDA_ALLOC_CONF, or a fixed input size",
            f"{needed}; expandable segments do not work on every such system",
            80 if plenty else 50,
        )


def _private_pools(case: Case) -> Iterator[Advice]:
    private = case.found.amount("private")
    asked = case.account.requested
    if private and asked and private.surely_above(case.short or asked):
        yield Advice(
            "capture fewer CUDA graphs or MemPools, or let them share a pool",
            f"{private} is free, but in private pools, where only they can use it",
            72,
        )


def _smaller_shape(case: Case) -> Iterator[Advice]:
    now = case.account
    batched = [shape for shape in case.shapes if shape.batch >= 0]
    if not batched or now.room is None or now.requested is None:
        return
    shape = batched[0]
    batch = shape.sizes[shape.batch]
    fits = batch * now.room.low_bytes // max(1, now.requested.high_bytes)
    name = shape.names[shape.batch]
    if 0 < fits < batch:
        one = now.requested.middle_bytes // batch
        yield Advice(
            f"{name} {batch} -> {fits} or less",
            f"this tensor then needs {Amount.exactly(one * fits)} of {now.room}; with "
            "accumulation, the step stays the same",
            76,
        )
    if any("vocab" in name for name in shape.names):
        yield Advice(
            "cross-entropy in chunks of rows",
            "the tensor has the size of the logits, which then never exist as a whole",
            66,
        )


def _smaller(case: Case) -> Iterator[Advice]:
    now = case.account
    stays = case.place.phase in ("loading", "the optimizer's step")
    known = now.room and now.requested and now.allocated and case.short
    if not known or stays:
        if not stays and "absurd" not in case.found.flags:
            yield Advice("a smaller batch or input", "most tensors shrink with it", 35)
        return
    if any(shape.batch >= 0 for shape in case.shapes):
        return
    assert now.requested and now.allocated and case.short
    tensors = now.allocated + now.requested
    share = math.ceil(100 * case.short.middle_bytes / max(1, tensors.middle_bytes))
    yield Advice(
        "a smaller batch or shorter input",
        f"by {share} % at least, if all in tensors and this request "
        f"({tensors}) shrinks with it; by more, as parameters do not",
        50,
    )


def _last_straw(case: Case) -> Iterator[Advice]:
    now = case.account
    if now.requested is None or now.total is None or now.allocated is None:
        return
    small = now.requested.high_bytes < _SMALL_SHARE * now.total.low_bytes
    held = now.allocated.middle_bytes / max(1, now.total.middle_bytes)
    if small and held > 0.5:
        yield Advice(
            f"find what holds the {now.allocated} in tensors (oomph.explain(), or "
            "torch.cuda.memory_summary())",
            f"the {now.requested} asked for last is not what fills the device",
            86 if held > _FULL_SHARE else 58,
        )


_BY_PHASE = {
    "the optimizer's step": (
        "an 8-bit or fused optimizer, or states sharded over devices (FSDP, ZeRO)",
        "state does not depend on the batch, and comes in the first step",
    ),
    "loading": (
        "load to the CPU first (map_location='cpu'), in 16 bits, or in parts",
        "a checkpoint on the device is there beside the model",
    ),
    "evaluation": (
        "torch.no_grad() around evaluation if it is missing, and a smaller batch there",
        "without it, forward keeps all for a backward that does not come",
    ),
    "backward": (
        "checkpointing (torch.utils.checkpoint)",
        "frees activations kept for backward; costs another forward",
    ),
    "forward": (
        "checkpointing (torch.utils.checkpoint), if this is training",
        "frees activations kept for backward; costs another forward",
    ),
}


def _phase(case: Case) -> Iterator[Advice]:
    if case.place.phase not in _BY_PHASE or "absurd" in case.found.flags:
        return
    action, why = _BY_PHASE[case.place.phase]
    if case.place.phase == "evaluation" and case.place.no_grad:
        action, why = "a smaller batch in evaluation", "gradients are off there already"
    if "checkpointing" in action and "checkpointing" in case.traces.seen:
        return
    yield Advice(action, why, 54)


def _oomph(case: Case) -> Iterator[Advice]:
    now = case.account
    if not case.on_linux or "oomph" in case.found.flags or "absurd" in case.found.flags:
        return
    if case.short is None or (
        now.total and case.short.low_bytes > now.total.high_bytes
    ):
        return
    yield Advice(
        "oomph run SCRIPT: continues in host memory",
        f"at least {case.short} crosses the link each time it is used, so steps slow "
        "down",
        57,
    )


def _own_reason(case: Case) -> Iterator[Advice]:
    if "oomph" in case.found.flags:
        yield Advice(
            "follow oomph's own report below the error",
            "it knows the program's tensors; this text has only the sums",
            99,
        )


def _enough_free(case: Case) -> Iterator[Advice]:
    now = case.account
    if now.missing is None or case.short is not None or now.limit_decides:
        return
    if now.missing.high_bytes >= 0 or case.found.flags & {"oomph", "absurd"}:
        return
    if now.total and -now.missing.low_bytes < _SMALL_SHARE * now.total.low_bytes:
        yield Advice(
            "free more memory all the same",
            f"{now.free} was free when the text was made, hardly more than was asked "
            "for; the driver needs some itself",
            60,
        )
    else:
        yield Advice(
            "look at limits outside PyTorch (virtual GPU, MIG, ulimit -v, a sandbox), "
            "and at processes that came and went",
            f"{now.free} was free when the text was made, more than was asked for",
            70,
        )


PYTORCH = (
    *(_wrong_size, _limit, _other_processes, _unnamed, _defragment, _private_pools),
    *(_smaller_shape, _smaller, _last_straw, _phase, _oomph, _own_reason, _enough_free),
)
ASYNC = (_wrong_size, _limit, _smaller_shape, _smaller, _phase, _enough_free)
MPS = (_wrong_size, _smaller_shape, _smaller, _phase)
OTHERS = ()
