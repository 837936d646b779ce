"""The forms that out-of-memory errors have had, and what each of them tells.

Each form is a way to begin and fields that may follow it. A form's wording is that of
PyTorch's sources, from 0.4.1 (2018) to 2.13, without white space.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from oomph.doctor.amounts import PATTERN as SIZE
from oomph.doctor.amounts import Amount
from oomph.doctor.found import Found

Field = tuple[re.Pattern[str], Callable[[Found, "re.Match[str]"], None]]


def _take(name: str) -> Callable[[Found, re.Match[str]], None]:
    def take(found: Found, match: re.Match[str]) -> None:
        found.amounts.setdefault(name, Amount.read(match[1], match[2]))

    return take


def _take_process(found: Found, match: re.Match[str]) -> None:
    found.processes[int(match[1])] = Amount.read(match[2], match[3])


def _take_device(found: Found, match: re.Match[str]) -> None:
    found.device = int(match[1])


def _flag(name: str) -> Callable[[Found, re.Match[str]], None]:
    return lambda found, _: found.flags.add(name)


def _fields(**ways: tuple[str, Callable[[Found, re.Match[str]], None]]) -> list[Field]:
    return [(re.compile(pattern), take) for pattern, take in ways.values()]


_PYTORCH = _fields(
    requested=(rf"[.,:]?Triedtoallocate{SIZE}\.?", _take("requested")),
    absurd=(r"Triedtoallocatemorethan1EBmemory\.?", _flag("absurd")),
    device=(r"[.(,]*[A-Z]{3,4}(\d{1,4})(?:;|(?=hasatotal))", _take_device),
    total=(rf"{SIZE}totalcapaci?ty[;,]?", _take("total")),
    capacity=(rf"hasatotalcapaci?tyof{SIZE}\.?", _take("total")),
    limit=(r"\(alimitthatoomphwasgiven\)", _flag("limit")),
    free=(rf"(?:ofwhich)?{SIZE}(?:isfree\.?|free[;,]?)", _take("free")),
    allowed=(rf"{SIZE}allowed;", _take("allowed")),
    allocated=(rf"{SIZE}alreadyallocated[;,]?", _take("allocated")),
    active=(rf"{SIZE}currentactive;", lambda *_: None),
    process=(rf"Process(\d{{1,10}})has{SIZE}memoryinuse\.?", _take_process),
    this=(
        rf"Includingnon-PyTorchmemory,thisprocesshas{SIZE}memoryinuse\.?",
        _take("this_process"),
    ),
    in_tensors=(
        rf"(?:Oftheallocatedmemory)?{SIZE}isallocatedbyPyTorch[,.]?",
        _take("allocated"),
    ),
    private=(
        rf"(?:with|and)?{SIZE}allocatedinprivatepools\(e\.g\.,[A-Z]+Graphs\),?",
        _take("private"),
    ),
    cached=(
        rf"(?:and)?{SIZE}isreservedbyPyTorchbutunallocated\.?",
        _take("unallocated"),
    ),
    host=(rf"{SIZE}ofitisonthehost\.", _take("host")),
    reserved=(rf"{SIZE}reservedintotalbyPyTorch\)?\.?", _take("reserved")),
    old_cached=(rf"{SIZE}cached\)?", _take("unallocated")),
    fragments=(
        r"Ifreserved(?:butunallocated)?memoryis.{0,40}?trysetting"
        r"(?:max_split_size_mb|PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF=\w+:True)",
        lambda *_: None,
    ),
    oomph=(r"oomph:", _flag("oomph")),
)
_ASYNC = _fields(
    allocated=(rf"Currentlyallocated:{SIZE}", _take("allocated")),
    requested=(rf"Requested:{SIZE}", _take("requested")),
    total=(rf"Devicelimit:{SIZE}", _take("total")),
    free=(rf"Free\(accordingtoCUDA\):{SIZE}", _take("free")),
    allowed=(
        rf"PyTorchlimit\(setbyuser-suppliedmemoryfraction\):{SIZE}",
        _take("allowed"),
    ),
)
_ANYTHING = _fields(any=(r"", lambda *_: None))[:0]


@dataclass(frozen=True)
class Form:
    """A kind of out-of-memory text.

    Attributes:
        title: What to call it.
        begins: How it begins, as a pattern with groups of its own names.
        fields: What may follow.
        fields_min: With fewer, it is no error but a word about one.
    """

    title: str
    begins: str
    fields: list[Field]
    fields_min: int = 0


FORMS = {
    "pytorch": Form(
        "out of memory",
        r"(?P<backend>CUDA|HIP|XPU|DPCPP|NPU|MUSA|MLU)outof[mM]emory[.:!]?(?=\W|[A-Z]|$)",
        _PYTORCH,
        1,
    ),
    "pytorch_part": Form(
        "part of an out-of-memory error",
        rf"(?=Triedtoallocate{SIZE}[.(])|(?=\([A-Z]{{3,4}}\d+;{SIZE}totalcapac)"
        rf"|(?=GPU\d+hasatotalcapaci?tyof)",
        _PYTORCH,
        2,
    ),
    "async": Form(
        "out of memory (cudaMallocAsync)",
        r"Allocationondevice(?P<device>\d{0,4})wouldexceedallowedmemory\.?"
        r"(?:\(outofmemory\))?",
        _ASYNC,
    ),
    "warning": Form(
        "a warning (2.13): a request failed, and PyTorch tried again",
        r"memoryallocationfailedwithOOMondevice(?P<device>\d{1,4})whiletryingto"
        r"allocate(?P<requested>\d{1,19})bytes"
        r"(?:\(free:(?P<free>\d{1,19}),total:(?P<total>\d{1,19})\))?",
        _ANYTHING,
    ),
    "cuda": Form(
        "CUDA error: out of memory",
        r"CUDA(?:driver)?error:?outofmemory|cudaruntimeerror\(2\):outofmemory"
        r"|CUDA_ERROR_OUT_OF_MEMORY|Cudafailure2?'outofmemory'"
        r"|HIPerror:outofmemory",
        _ANYTHING,
    ),
    "library": Form(
        "a CUDA library",
        r"(?P<detail>CUBLAS_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED"
        r"|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_NOT_SUPPORTED)"
        r"(?:whencalling[a-zA-Z]+\()?",
        _ANYTHING,
    ),
    "cpu": Form(
        "host memory is gone (DefaultCPUAllocator)",
        r"(?:DefaultCPUAllocator:(?:can'tallocatememory|notenoughmemory):"
        r"|\$Torch:notenoughmemory:)youtriedtoallocate"
        r"(?P<requested>\d{1,19})(?P<unit>bytes|[KMGT]B)",
        _ANYTHING,
    ),
    "bad_alloc": Form(
        "std::bad_alloc",
        r"std::bad_alloc(?P<detail>:out_of_memory|:CUDAerror|:RMMfailure)?"
        r"(?:.{0,400}?cudaErrorMemoryAllocationoutofmemory)?",
        _ANYTHING,
    ),
}
_BEGIN = re.compile(
    "(?=[ACDGHMNTXcms($])(?:"  # which is looked at first
    + "|".join(
        f"(?P<form_{key}>{re.sub(r'[(][?]P<(?!form_)', f'(?P<{key}_', form.begins)})"
        for key, form in FORMS.items()
    )
    + ")"
)
# What may stand between fields: parts that were left out, marks of lists.
_BETWEEN = re.compile(r"(?:\.{3,}|…|\[\.{3}\]|\(\.{3}\)|[-/•·,;])*")
# One of these is in each beginning, at most _REACH characters after its start.
ANCHORS = (
    *("outofmemory", "outofMemory", "Triedtoallocate", "totalcapac", "bad_alloc"),
    *("exceedallowedmemory", "failedwithOOM", "STATUS_ALLOC_FAILED", "notenoughmemory"),
    *("CUDNN_STATUS_NOT_SUPPORTED", "can'tallocatememory", "OUT_OF_MEMORY"),
)
_REACH = 60
_NEAR = 100
_RAISED = re.compile(r"(?:Error|Exception|OutOfMemory):?$")
OUT_OF_SCOPE = re.compile(
    r"ResourceExhaustedError|RESOURCE_EXHAUSTED|OOMwhenallocatingtensor"
    r"|MPSbackendoutofmemory"
)


def find(text: str, begin: int, end: int) -> list[Found]:
    """The errors of a squeezed text that start between two positions, in order.

    Example:
        >>> find("CUDAoutofmemory.Triedtoallocate2.34GiB(GPU0;", 0, 9)[0].device
        0
    """
    errors = []
    position = begin
    for anchor in _anchors(text, begin, end + _REACH):
        if anchor < position:
            continue
        match = _BEGIN.search(text, max(position, anchor - _REACH), anchor + _NEAR)
        if match is None or match.start() >= end:
            continue
        match = _BEGIN.match(text, match.start()) or match  # as long as it can be
        form = next(k for k in FORMS if match[f"form_{k}"] is not None)
        found = _parsed(form, match)
        count = _take_fields(found, text)
        position = max(found.end, match.start() + 1)
        if count >= FORMS[form].fields_min or _is_raised(found, text):
            errors.append(found)
    return errors


def _anchors(text: str, begin: int, end: int) -> list[int]:
    """Where words stand that each beginning has one of: found fast, looked at later."""
    places = []
    for word in ANCHORS:
        place = text.find(word, begin, end)
        while place >= 0:
            places.append(place)
            place = text.find(word, place + 1, end)
    return sorted(places)


def _is_raised(found: Found, text: str) -> bool:
    """Whether an exception's name stands before the words, and not only the words."""
    before = text[max(0, found.start - 40) : found.start]
    return found.form == "pytorch" and _RAISED.search(before) is not None


def _parsed(form: str, match: re.Match[str]) -> Found:
    groups = {
        name.removeprefix(f"{form}_"): value
        for name, value in match.groupdict().items()
        if value and name.startswith(f"{form}_")
    }
    found = Found(
        "pytorch" if form == "pytorch_part" else form, match.start(), match.end()
    )
    found.backend = groups.get("backend", "CUDA")
    found.detail = groups.get("detail", "")
    if "device" in groups:
        found.device = int(groups["device"])
    for name in ("requested", "free", "total"):
        if name in groups:
            unit = groups.get("unit", "bytes") if name == "requested" else "bytes"
            found.amounts[name] = Amount.read(groups[name], unit)
    if form == "pytorch_part":
        found.flags.add("part")
    return found


def _take_fields(found: Found, text: str) -> int:
    """Reads the fields that follow; how many there were."""
    count = 0
    while True:
        between = _BETWEEN.match(text, found.end)
        position = between.end() if between else found.end
        for pattern, take in FORMS[found.form].fields:
            match = pattern.match(text, position)
            if match is not None and match.end() > position:
                take(found, match)
                found.end = match.end()
                count += 1
                break
        else:
            return count
        if "oomph" in found.flags:
            return count
