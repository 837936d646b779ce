"""What helps after an error of an allocator, with numbers: a rule for each case.

A rule gives advice where its case is there, and nothing where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from oomph.doctor.amounts import ZERO, Amount
from oomph.doctor.cases import Advice, Case
from oomph.doctor.parse import FORMS
from oomph.doctor.verdict import Account

_SMALL_SHARE = 0.02  # of the device: such a request is only the last straw
_FULL_SHARE = 0.85  # of the device in tensors: then it is they that fill it
_EMPTY_SHARE = 0.1
_CERTAIN = 100  # a weight
_WRONG_SIZE = 8  # times the device: no shape is meant to be as large
_ABSURD_BYTES = 1 << 50  # more than any device or host has
_CONTEXT_BYTES = 1 << 30  # a bare CUDA context of a process is less
_COPY_SHARE = 0.1  # of the device: a smaller request equals what is held by chance


def _wrong_size(case: Case) -> Iterator[Advice]:
    asked, total = case.account.requested, case.account.total
    if "absurd" in case.found.flags:
        yield Advice(
            "correct the size", "no device has 1 EB: a shape is wrong", _CERTAIN
        )
    elif asked and total and asked.low_bytes > _WRONG_SIZE * total.high_bytes:
        times = asked.middle_bytes // total.middle_bytes
        yield Advice(
            "check the shape or the input",
            f"the request is {times} times the whole device",
            _CERTAIN,
        )
    elif asked and total and asked.surely_above(total):
        yield Advice(
            "make this one tensor smaller",
            f"{asked} is more than the whole device has ({total})",
            95,
        )


def _absurd(case: Case) -> Iterator[Advice]:
    asked = case.account.requested
    if asked and asked.low_bytes > _ABSURD_BYTES:
        yield Advice(
            "check the shape or the input",
            "no machine has as much: a size was computed wrongly",
            _CERTAIN,
        )


def _other_gpu(case: Case) -> Iterator[Advice]:
    """What nvidia-smi's table in the log shows."""
    gpus = case.traces.gpus
    full = [n for n, (used, total) in gpus.items() if used > _FULL_SHARE * total]
    empty = [n for n, (used, total) in gpus.items() if used < _EMPTY_SHARE * total]
    failed = case.found.device in (None, *full)
    if full and empty and failed and FORMS[case.found.form].memory == "GPU":
        shown = [
            f"GPU {n} {gpus[n][0]} of {gpus[n][1]} MiB" for n in (full[0], empty[0])
        ]
        yield Advice(
            f"CUDA_VISIBLE_DEVICES={empty[0]}: use the GPU that is empty",
            f"nvidia-smi in this log shows in use: {', '.join(shown)}",
            92,
        )


def _limit(case: Case) -> Iterator[Advice]:
    now = case.account
    if now.limit_decides:
        left = now.room if case.short else "less than was asked for"
        yield Advice(
            "raise the limit of this process",
            f"set_per_process_memory_fraction() allows {now.allowed}, of which {left} "
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
    ranks = _bare_contexts(now)
    if ranks:
        yield Advice(
            "torch.cuda.set_device(local_rank) before CUDA is used, and map_location "
            "in torch.load",
            f"{ranks} processes of {now.others[0][1]} each are most likely this job's "
            "own ranks, which started on this GPU, too",
            91,
        )
    yield Advice(
        f"end or move process {names}" + (", if they are not its own" if ranks else ""),
        f"frees up to {total}; {case.short} is missing" + ("" if enough else " in all"),
        90 if enough else 30,
    )


def _bare_contexts(now: Account) -> int:
    """How many processes have the same little, as CUDA takes for itself."""
    sizes = {amount for _, amount in now.others}
    same = len(sizes) == 1 and max(a.high_bytes for a in sizes) < _CONTEXT_BYTES
    return len(now.others) if same and len(now.others) > 1 else 0


def _unnamed(case: Case) -> Iterator[Advice]:
    now = case.account
    if now.outside is None or now.limit_decides or case.plenty_free:
        return
    held = now.outside if now.own_outside is None else now.unlisted
    named = now.others_total if now.own_outside is not None else None
    if held is None or not now.outside_is_much or (named and named.surely_above(ZERO)):
        return
    if case.short is None or held.surely_above(case.short):
        enough = f", {case.short} of it is enough" if case.short else ""
        is_async = case.found.form == "async"
        pool = "; what the driver's pool caches is in it" if is_async else ""
        yield Advice(
            "nvidia-smi: see who holds memory outside this PyTorch",
            f"{held} is outside{enough}; CUDA and libraries need some of it themselves"
            + pool,
            61,
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
            f"{needed}; the text does not say how large the pieces are",
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
            95 if _mostly_private(case) else 72,
        )


def _mostly_private(case: Case) -> bool:
    private, allocated = case.found.amount("private"), case.account.allocated
    return bool(private and allocated and 2 * private.low_bytes > allocated.high_bytes)


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


def _logits(case: Case) -> Iterator[Advice]:
    named = any("vocab" in name for shape in case.shapes for name in shape.names)
    if not named and not case.place.in_loss:
        return
    size = "the tensor has the size of the logits" if named else "it ends in the loss"
    yield Advice(
        "cross-entropy in chunks of rows (such as Liger's, or cut-cross-entropy)",
        f"{size}, which then never exist as a whole",
        77 if case.place.in_loss else 66,
    )


def _copy(case: Case) -> Iterator[Advice]:
    now = case.account
    if _copies_all(now):
        yield Advice(
            "look for a second copy of the model",
            f"one tensor asks for as much as all others hold ({now.allocated}): FSDP "
            "without auto_wrap_policy, deepcopy, a change of type, or a checkpoint on "
            "the device does that",
            84,
        )


def _copies_all(now: Account) -> bool:
    asked, held, total = now.requested, now.allocated, now.total
    if asked is None or held is None or total is None:
        return False
    same = not asked.surely_above(held) and not held.surely_above(asked)
    return same and asked.low_bytes > _COPY_SHARE * total.high_bytes


def _smaller(case: Case) -> Iterator[Advice]:
    now = case.account
    stays = case.place.phase in ("loading", "the optimizer's step")
    if stays or _is_wrong(case) or _copies_all(now) or _mostly_private(case):
        return
    if any(_smaller_shape(case)):
        return
    if not (now.requested and now.allocated and case.short):
        if not case.plenty_free:
            yield Advice("a smaller batch or input", "most tensors shrink with it", 35)
        return
    tensors = now.allocated + now.requested
    share = math.ceil(100 * case.short.middle_bytes / max(1, tensors.middle_bytes))
    yield Advice(
        "a smaller batch or shorter input",
        f"at least {share} % smaller; more in practice, since parameters do not shrink",
        70 if case.place.in_loss else 50,
    )


def _is_wrong(case: Case) -> bool:
    """Whether the size itself is wrong, so that a little less of it does not help."""
    return any(advice.weight == _CERTAIN for advice in _wrong_size(case))


def _last_straw(case: Case) -> Iterator[Advice]:
    now = case.account
    if now.requested is None or now.total is None or now.allocated is None:
        return
    small = now.requested.high_bytes < _SMALL_SHARE * now.total.low_bytes
    held = now.allocated.middle_bytes / max(1, now.total.middle_bytes)
    if small and held > 0.5 and not _mostly_private(case):
        yield Advice(
            f"find what holds the {now.allocated} in tensors (oomph.explain(), or "
            "torch.cuda.memory_summary())",
            f"the last request, {now.requested}, is not what fills the device",
            86 if held > _FULL_SHARE else 58,
        )


_BY_PHASE = {
    "the optimizer's step": (
        "an 8-bit or fused optimizer, or states sharded over devices (FSDP, ZeRO)",
        "state does not depend on the batch, and comes in the first step",
    ),
    "loading": (
        "load to the CPU first (map_location='cpu'), in 16 bits, or in parts",
        "a checkpoint on the device takes its memory in addition to the model",
    ),
    "evaluation": (
        "torch.no_grad() around evaluation if it is missing, and a smaller batch there",
        "without it, forward keeps everything for a backward that never comes",
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
    if case.place.phase not in _BY_PHASE or _is_wrong(case) or _mostly_private(case):
        return
    action, why = _BY_PHASE[case.place.phase]
    if case.place.phase == "evaluation" and case.place.no_grad:
        action, why = "a smaller batch in evaluation", "gradients are off there already"
    if "checkpointing" in action and "checkpointing" in case.traces.seen:
        return
    yield Advice(action, why, 54)


def _oomph(case: Case) -> Iterator[Advice]:
    now = case.account
    if not case.on_linux or "oomph" in case.found.flags or _mostly_private(case):
        return
    if case.short is None or (
        now.total and case.short.low_bytes > now.total.high_bytes
    ):
        return
    yield Advice(
        "oomph run SCRIPT: continues in host memory",
        f"at least {case.short} goes over PCIe in every step, so steps slow down",
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
    if now.room is None or now.requested is None or now.limit_decides:
        return
    if not now.room.surely_above(now.requested) or "oomph" in case.found.flags:
        return
    if not case.plenty_free:
        yield Advice(
            "free more memory all the same",
            f"{now.free} was free when the text was written, "
            f"{now.room - now.requested} more than was asked for: the driver may need "
            "that itself, or others took it",
            60,
        )
    else:
        yield Advice(
            "look at limits outside PyTorch (virtual GPU, MIG, ulimit -v, a sandbox), "
            "and at processes that came and went",
            f"{now.free} was free when the text was written, more than was asked for",
            70,
        )


PYTORCH = (
    *(_wrong_size, _limit, _other_processes, _unnamed, _defragment, _private_pools),
    *(_smaller_shape, _logits, _copy, _smaller, _last_straw, _phase, _oomph),
    *(_own_reason, _enough_free, _other_gpu),
)
ASYNC = (
    _wrong_size,
    _limit,
    _unnamed,
    _smaller_shape,
    _logits,
    _smaller,
    _phase,
    _enough_free,
)
MPS = (_wrong_size, _smaller_shape, _logits, _last_straw, _phase)
OTHERS = (_absurd, _other_gpu)
