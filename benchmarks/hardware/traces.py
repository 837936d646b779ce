"""Records what training programs ask of the allocator, event by event.

    python traces.py RESULT

runs each of PROGRAMS on the GPU that it finds, real or simulated, with the allocator
that PyTorch has, and writes their events as JSON. :func:`compare` then tells where two
such records part.
"""

from __future__ import annotations

import gc
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / "tests" / "scripts"
GPT = ROOT / "examples" / "train_gpt.py"
SMALL = (
    "--layers 2 --heads 4 --width 128 --vocabulary 1024 --block 64 --batch 8 --steps 2"
)
PROGRAMS: dict[str, tuple[Path, str]] = {
    "a GPT": (GPT, SMALL),
    "a checkpointed GPT, autocast, fused AdamW": (
        GPT,
        f"{SMALL} --amp --fused --checkpoint",
    ),
    "a ResNet": (SCRIPTS / "train_resnet.py", "--workers 0 --steps 2"),
    "steps captured in graphs": (SCRIPTS / "train_graphs.py", ""),
}

# What a library that is called by these takes beside its results is its own choice.
LIBRARY = re.compile(r"cudnn|cublas|cusolver|cufft|cusparse|workspace", re.I)
WRAPPER = re.compile(r"^at::native::empty|^at::detail::|^at::_ops::|wrapper_")


@dataclass(frozen=True)
class Event:
    """Something that the allocator was asked for, or did.

    Attributes:
        action: As in PyTorch's traces, such as ``alloc`` or ``segment_map``.
        number: Of the address, in the order in which addresses came up.
        size: In bytes.
        stream: Its number, in the order in which streams came up.
        site: Of an allocation: the operator, and the line of Python.
    """

    action: str
    number: int
    size: int
    stream: int
    site: str = ""

    @property
    def is_free(self) -> bool:
        """Whether it belongs to the end of a block."""
        return self.action.startswith("free_")

    @property
    def is_segment(self) -> bool:
        """Whether it is about the memory behind blocks."""
        return self.action.startswith("segment_")

    @property
    def is_librarys(self) -> bool:
        """Whether a library may have chosen its size."""
        return LIBRARY.search(self.site) is not None


@dataclass
class Comparison:
    """Where two records part.

    Attributes:
        events: How many of each were compared.
        requests: The first two blocks asked for or freed that differ, those of
            libraries left aside.
        libraries: What libraries asked for more often on one side: size, site, counts.
        segments: The first two that differ of the events about segments.
    """

    events: tuple[int, int]
    requests: dict[str, Any] | None = None
    libraries: list[dict[str, Any]] = field(default_factory=list)
    segments: dict[str, Any] | None = None

    @property
    def problems(self) -> list[str]:
        """What libraries do not explain, in words."""
        found = []
        if self.requests is not None:
            found.append(f"requests differ: {self.requests}")
        if self.segments is not None and not self.libraries:
            found.append(f"segments differ: {self.segments}")
        return found


# ---- from PyTorch's traces


def site_of(frames: list[dict[str, Any]]) -> str:
    """The innermost operator and line of Python among the frames of a stack."""
    operator = line = ""
    for frame in frames:
        name = frame["name"].replace("(anonymous namespace)::", "")
        if name.startswith("at::") and not operator and not WRAPPER.search(name):
            operator = name.partition("(")[0]
        if frame["filename"].endswith(".py") and not line:
            line = f"{Path(frame['filename']).name}:{frame['line']}"
    return " ".join(filter(None, (operator, line)))


def events_of(trace: Iterable[dict[str, Any]]) -> list[Event]:
    """The events of a trace, without addresses and times."""
    streams: dict[int, int] = {}
    blocks: dict[int, tuple[int, str]] = {}
    segments: dict[int, int] = {}
    block_count = 0
    found: list[Event] = []
    for entry in trace:
        action, address = entry["action"], entry.get("addr", 0)
        site = ""
        if action == "alloc":
            site = site_of(entry["frames"])
            blocks[address] = block_count, site
            block_count += 1
        if action.startswith("segment_"):
            number = segments.setdefault(address, len(segments))
        else:
            number, site = blocks.get(address, (-1, ""))
        stream = streams.setdefault(entry["stream"], len(streams))
        found.append(Event(action, number, entry["size"], stream, site))
    return in_order(found)


def in_order(events: Iterable[Event]) -> list[Event]:
    """The events, with frees that follow each other sorted.

    Autocast frees its copies of weights in an order that depends on addresses of the
    host.
    """
    found: list[Event] = []
    for is_free, group in itertools.groupby(events, lambda event: event.is_free):
        run = list(group)
        found += sorted(run, key=lambda e: (e.number, e.action)) if is_free else run
    return found


# ---- comparing


def renumbered(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """What is compared of events, their blocks counted anew."""
    numbers: dict[int, int] = {}
    return [
        (e.action, numbers.setdefault(e.number, len(numbers)), e.size, e.stream)
        for e in events
    ]


def first_difference(left: list[Event], right: list[Event]) -> dict[str, Any] | None:
    """The first two events that differ, and how many came before; None: all agree."""
    pairs = itertools.zip_longest(renumbered(left), renumbered(right))
    for at, (one, other) in enumerate(pairs):
        if one != other:
            sides = {"left": left, "right": right}
            return {
                "after": at,
                **{
                    name: asdict(side[at]) if at < len(side) else None
                    for name, side in sides.items()
                },
            }
    return None


def library_differences(left: list[Event], right: list[Event]) -> list[dict[str, Any]]:
    """What libraries asked for not equally often, by size and site."""
    counts = [
        Counter((e.size, e.site) for e in side if e.action == "alloc" and e.is_librarys)
        for side in (left, right)
    ]
    return [
        {"size": size, "site": site, "left": counts[0][key], "right": counts[1][key]}
        for key in sorted(counts[0].keys() | counts[1].keys())
        for size, site in [key]
        if counts[0][key] != counts[1][key]
    ]


def compare(left: list[Event], right: list[Event]) -> Comparison:
    """Where two records of one program part."""
    libraries = library_differences(left, right)

    def of_blocks(events: list[Event]) -> list[Event]:
        # Where libraries agree, they are held to the order of events as all others.
        return [
            event
            for event in events
            if not event.is_segment and not (libraries and event.is_librarys)
        ]

    def of_segments(events: list[Event]) -> list[Event]:
        return [event for event in events if event.is_segment]

    return Comparison(
        events=(len(left), len(right)),
        requests=first_difference(of_blocks(left), of_blocks(right)),
        libraries=libraries,
        segments=first_difference(of_segments(left), of_segments(right)),
    )


def read(path: Path) -> dict[str, list[Event]]:
    """The events of each program, as :func:`main` wrote them."""
    return {
        name: [Event(*values) for values in events]
        for name, events in json.loads(path.read_text()).items()
    }


def main() -> None:
    import torch

    sys.path.append(str(ROOT / "tests"))
    import recorded

    found: dict[str, list[list[Any]]] = {}
    torch.cuda.init()
    for name, (script, arguments) in PROGRAMS.items():
        trace = recorded.trace(str(script), arguments.split(), context="all")
        found[name] = [list(asdict(event).values()) for event in events_of(trace)]
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
