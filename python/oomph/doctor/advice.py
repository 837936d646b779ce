"""What helps after an error, most likely first, and what cannot, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from oomph.doctor import helps
from oomph.doctor.cases import Advice, Advised, Case

HELPS_MAX = 3
Rule = Callable[[Case], Iterable[Advice]]


def advise(case: Case) -> Advised:
    """What to do about an error."""
    rules = _RULES.get(case.found.form, ())
    found = [advice for rule in rules for advice in rule(case)]
    found.sort(key=lambda advice: -advice.weight)
    cannot = [a for rule in _CANNOT.get(case.found.form, ()) for a in rule(case)]
    return Advised(found[:HELPS_MAX], cannot, list(_unknown(case)))


# ---- Errors without the numbers of an allocator


def _always(*advice: Advice) -> tuple[Rule, ...]:
    return (lambda _: advice,)


def _library(case: Case) -> Iterator[Advice]:
    blocking = "CUDA_LAUNCH_BLOCKING=1: see whether another error came first"
    if case.found.detail == "CUDNN_STATUS_NOT_SUPPORTED":
        yield Advice("make inputs contiguous()", "the error's own first guess", 60)
        yield Advice(
            "a smaller batch",
            "cuDNN refuses tensors of 2^31 elements, and says the same without room "
            "for a workspace",
            55,
        )
        yield Advice(blocking, "a failed kernel is reported late", 40)
        return
    yield Advice(
        "leave the library some memory: torch.cuda.empty_cache() before its first use, "
        "or a smaller batch",
        "it allocates beside PyTorch, whose cache it cannot use",
        60,
    )
    yield Advice("nvidia-smi: see who else fills the device", "its handle is small", 50)
    yield Advice(blocking, "an index out of range ends like this, too", 45)


_RULES: dict[str, tuple[Rule, ...]] = {
    "pytorch": helps.PYTORCH,
    "async": helps.ASYNC,
    "library": (_library,),
    "cuda": _always(
        Advice(
            "nvidia-smi: see who fills the device",
            "the driver had none left for CUDA itself or a library; not PyTorch's "
            "allocator, which would tell numbers",
            60,
        ),
        Advice(
            "leave memory free beside PyTorch: a smaller batch, or "
            "set_per_process_memory_fraction(0.9)",
            "what PyTorch caches, others cannot use; torch.cuda.empty_cache() can help "
            "here",
            55,
        ),
        Advice(
            "CUDA_LAUNCH_BLOCKING=1: see which call it was",
            "the error may be reported late; pinning host memory fails like this, too",
            50,
        ),
    ),
    "cpu": _always(
        Advice(
            "less host memory: fewer workers of the DataLoader, data in parts",
            "it is the machine's memory that is gone, or a container's limit",
            60,
        ),
        Advice("free -h, and dmesg for the OOM killer", "to see who holds it", 50),
    ),
    "bad_alloc": _always(
        Advice(
            "look which allocator is in use (RMM, another CUDAPluggableAllocator)",
            "with one, this is device memory, and it knows the numbers",
            60,
        ),
        Advice("free -h", "without one, C++ found no host memory", 50),
    ),
    "warning": _always(
        Advice(
            "nothing, if no error follows",
            "PyTorch emptied its cache and tried again; each time costs a wait for the "
            "device",
            60,
        ),
        Advice(
            "a little less on the device, if it comes in each step",
            "so that the cache need not be emptied",
            50,
        ),
        Advice("TORCH_CPP_LOG_LEVEL=ERROR", "hides these lines of PyTorch 2.13", 40),
    ),
}


# ---- What cannot help


def _cannot(case: Case) -> Iterator[Advice]:
    now = case.account
    settings = "expandable_segments, max_split_size_mb"
    if now.limit_decides:
        yield Advice("freeing memory of the device", "it is the limit that is reached")
    elif now.fragmentation_possible is False and now.cached and case.short:
        yield Advice(
            settings,
            f"fragmentation is not the cause: of {case.short} missing they could free "
            f"at most {now.cached}, {now.missing_defragmented} stays missing",
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


def _cannot_host(case: Case) -> Iterator[Advice]:
    yield Advice(
        "a GPU's settings, empty_cache(), offloading",
        "the memory that is gone is the host's",
    )


_CANNOT: dict[str, tuple[Rule, ...]] = {
    "pytorch": (_cannot,),
    "async": (_cannot_async,),
    "cpu": (_cannot_host,),
}


def _unknown(case: Case) -> Iterator[str]:
    now, found = case.account, case.found
    if found.form in ("cuda", "library", "bad_alloc"):
        yield "any number: this kind of error has none"
        return
    if found.form not in ("pytorch", "async"):
        return
    if now.requested is None and "absurd" not in found.flags:
        yield "how much was asked for"
    elif now.free is None and now.allowed is None and "absurd" not in found.flags:
        yield "how much was free, so what is missing"
    elif found.form == "async":
        yield "what the driver's pool caches, and what is outside it"
    elif now.cached is None and "absurd" not in found.flags:
        yield "how much PyTorch caches, so whether fragmentation is the cause"
    elif found.processes and now.likely_self is None and now.own_outside is None:
        yield ("which of the processes is this one: a container shows it by another id")
    elif now.outside_is_much and not now.others:
        yield "who holds the memory outside PyTorch"
    if case.short is None and now.missing and not now.limit_decides:
        yield "why the driver refused although enough was free"
    if not case.place.line and not case.place.phase:
        yield "where: there is no traceback before the error"
