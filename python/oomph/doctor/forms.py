"""The forms that errors of PyTorch's allocators have had, and what each of them says.

Each form is a way to begin and fields that may follow it. A form's wording is that of
PyTorch's sources, from 0.4.1 (2018) to 2.13, without white space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oomph.doctor.amounts import PATTERN as SIZE
from oomph.doctor.amounts import Amount
from oomph.doctor.cases import Advice
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


def _take_oomph(found: Found, match: re.Match[str]) -> None:
    found.flags.add("oomph")
    if match[1]:
        found.amounts["missing"] = Amount.read(match[1], match[2])


def _flag(name: str) -> Callable[[Found, re.Match[str]], None]:
    return lambda found, _: found.flags.add(name)


def steps(*rows: tuple[str, str]) -> list[Advice]:
    """Advice in its order: what to do, and why."""
    return [Advice(do, why, 60 - 3 * place) for place, (do, why) in enumerate(rows)]


def amount(name: str) -> str:
    """The pattern of an amount, its number and its unit in groups of that name."""
    number, unit = r"\d[\d.,]{0,24}", "[kKMGTPE]?i?B|[bB]ytes"
    return rf"(?P<{name}>{number})(?P<{name}_unit>{unit})"


def _fields(**ways: tuple[str, Callable[[Found, re.Match[str]], None]]) -> list[Field]:
    return [(re.compile(pattern), take) for pattern, take in ways.values()]


_ON = r"(?:(?!outofmemory).){0,900}?"  # further on, but not in another error's text
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
    # What oomph goes on with: a sentence, and a line of its report.
    oomph=(
        rf"oomph:(?:{_ON}{SIZE}(?:aremissing|short|isneeded))?",
        _take_oomph,
    ),
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
_MPS = _fields(
    reserved=(rf"\(MPSallocated:{SIZE},", _take("reserved")),
    other=(rf"otherallocations:{SIZE},", _take("other")),
    allowed=(rf"maxallowed:{SIZE}\)\.?", _take("allowed")),
    requested=(
        rf"Triedtoallocate{SIZE}(?:on(?:private|shared)pool)?\.?",
        _take("requested"),
    ),
)


@dataclass(frozen=True)
class Form:
    """A kind of out-of-memory text.

    Attributes:
        title: What to call it; with ``{backend}`` and ``{detail}`` of what was found.
        starts: Words that it begins with, one of them: found fast.
        begins: The whole beginning. Groups that have another called ``…_unit`` are
            amounts, the others are facts, known by the group's name.
        fields: What may follow.
        fields_min: With fewer, it is no error but a word about one.
        line: What a line must be for words that have no fields; "": any.
        memory: Whose is gone: ``GPU``, ``host``, or "" if that is not known.
        again: The kind of event that others of the same name, some lines before it, may
            have reported already; ``any``: each error may have.
        helps: What to do, most likely first, beside what the numbers say.
        doubt: What this text alone does not show.
    """

    title: str
    starts: Sequence[str]
    begins: str
    fields: Sequence[Field] = ()
    fields_min: int = 0
    line: str = ""
    memory: str = "GPU"
    again: str = ""
    helps: Sequence[Advice] = ()
    doubt: str = ""


_BACKENDS = ("CUDA", "HIP", "XPU", "DPCPP", "NPU", "MUSA", "MLU")
PYTORCH = {
    "pytorch": Form(
        "{backend} out of memory",
        [f"{name}outof" for name in _BACKENDS],
        rf"(?P<backend>{'|'.join(_BACKENDS)})outof[mM]emory[.:!]?(?=\W|[A-Z]|$)",
        _PYTORCH,
        1,
        # An exception's name, which no word stands before, and nothing after it.
        r"(?:^|[^\w\s]\s*)[\w.]*(?:Error|Exception|OutOfMemory):\s*[A-Z]{3,5} out of "
        r"[mM]emory\W*$",
    ),
    "pytorch_part": Form(
        "{backend} out of memory, a part of the text",
        ("Triedtoallocate", "(GPU", "(XPU", "GPU"),
        rf"(?=Triedtoallocate{SIZE}[.(])|(?=\([A-Z]{{3,4}}\d+;{SIZE}totalcapac)"
        rf"|(?=GPU\d+hasatotalcapaci?tyof)",
        _PYTORCH,
        2,
    ),
    "async": Form(
        "out of memory (cudaMallocAsync)",
        ("Allocationondevice",),
        r"Allocationondevice(?P<device>\d{0,4})wouldexceedallowedmemory\.?"
        r"(?:\(outofmemory\))?",
        _ASYNC,
    ),
    "mps": Form(
        "{backend} out of memory",
        ("MPSbackendoutofmemory",),
        r"(?P<backend>MPS)backendoutofmemory",
        _MPS,
        1,
        helps=steps(
            ("a smaller batch or input", "most tensors shrink with it"),
            (
                "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0, with care",
                "lifts the limit; the system may then swap, or fail",
            ),
            (
                "close other programs, and torch.mps.empty_cache() before",
                "the GPU's memory is the machine's",
            ),
        ),
    ),
    "warning": Form(
        "a warning (2.13): a request failed, and PyTorch tried again",
        ("memoryallocationfailedwithOOM",),
        r"memoryallocationfailedwithOOMondevice(?P<device>\d{1,4})whiletryingto"
        r"allocate(?P<requested>\d{1,19})(?P<requested_unit>bytes)"
        r"(?:\(free:(?P<free>\d{1,19})(?P<free_unit>),"
        r"total:(?P<total>\d{1,19})(?P<total_unit>)\))?",
        helps=steps(
            (
                "nothing, if no error follows",
                "PyTorch emptied its cache and tried again; each time costs a wait for "
                "the device",
            ),
            (
                "a little less on the device, if it comes in each step",
                "so that the cache need not be emptied",
            ),
            ("TORCH_CPP_LOG_LEVEL=ERROR", "hides these lines of PyTorch 2.13"),
        ),
    ),
    "summary": Form(
        "out of memory, as torch.cuda.memory_summary() counts it",
        ("CUDAOOMs:",),
        r"CUDAOOMs:(?P<CUDA_OOMs>[1-9]\d*)cudaMallocretries:(?P<cudaMalloc_retries>\d+)"
        r"(?:.{0,400}?Allocatedmemory(?P<allocated>\d+)(?P<allocated_unit>[KMG]?i?B)"
        r"(?P<peak>\d+)(?P<peak_unit>[KMG]?i?B))?"
        r"(?:.{0,2000}?GPUreservedmemory(?P<reserved>\d+)(?P<reserved_unit>[KMG]?i?B))?",
        again="any",
        helps=steps(
            (
                "look at the error itself, where it was caught",
                "the summary counts it; what was asked for is in the error's text",
            ),
            (
                "compare what is reserved with the peak of what is allocated",
                "much more reserved is fragmentation, or a cache that a peak left",
            ),
        ),
    ),
}
