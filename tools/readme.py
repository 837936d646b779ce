"""Writes the tables of the documentation that the code or the benchmarks' results know.

--check only compares.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (
    *("settings", "allocator_settings", "how_offload_works", "api", "claims", "files"),
    *("releases", "checked"),
)
FILES = [DOCS / f"{name}.md" for name in PAGES]
OFFLOAD = ROOT / "benchmarks" / "results" / "offload.json"
sys.path.insert(0, str(ROOT / "python"))

import checked  # noqa: E402
import claims  # noqa: E402
import files  # noqa: E402
import release  # noqa: E402
from claims import row  # noqa: E402
from oomph.base.sizes import format_size  # noqa: E402
from oomph.memory import metrics  # noqa: E402
from oomph.settings import SETTINGS  # noqa: E402
from oomph.setup.allocator_settings import ANSWERS  # noqa: E402
from oomph_pytest.names import MARKERS  # noqa: E402

STATS_OF_CORE = ROOT / "csrc" / "python" / "stats.c"
UNITS = {  # by the end of a key
    "_per_s": "bytes/s",
    "bytes": "bytes",
    "_bytes_peak": "bytes",
    "_ns": "ns",
    "_ms": "ms",
    "without_offload": "ms",
}
DEFINED_ELSEWHERE = {
    "allocator": "`torch.cuda.get_allocator_backend()`, or the module of another",
    "host_kind": "`host_kind`",
    "rescues_last_steps": "`rescues_of`",
}
NO_NUMBER = {"allocator": "text", "host_kind": "text", "rescues_last_steps": "list"}


def default_of(value: object) -> str:
    """A default as users write it."""
    if value is None:
        return "none"
    return f"`{format_size(value)}`" if isinstance(value, int) else f"`{value}`"


def settings() -> Iterable[str]:
    """The table of the settings."""
    yield row("key", "allowed", "default", "meaning")
    yield row("---", "---", "---", "---")
    for key, setting in SETTINGS.items():
        default = default_of(setting.default).replace(" ", "")
        yield row(f"`{key}`", setting.allowed, default, setting.meaning)


def statistics() -> Iterable[str]:
    """The table of oomph's own metrics."""
    core = STATS_OF_CORE.read_text()
    yield row("key", "meaning", "unit", "defined by")
    yield row("---", "---", "---", "---")
    for key, meaning in metrics.OWN.items():
        ends = [unit for end, unit in UNITS.items() if key.endswith(end)]
        unit = NO_NUMBER.get(key) or (ends[0] if ends else "count")
        field = re.search(rf'"{key}", offsetof\(oomph_stats_t, (.*)\)', core)
        by = f"`{field[1]}`" if field else DEFINED_ELSEWHERE.get(key, "the planner")
        yield row(f"`{key}`", meaning, unit, by)


def markers() -> Iterable[str]:
    """The table of the pytest plugin's markers."""
    yield row("marker", "meaning")
    yield row("---", "---")
    for name, text in MARKERS.items():
        arguments, _, meaning = text.partition(": ")
        yield row(f"`{name}{arguments}`", meaning)


def answers() -> Iterable[str]:
    """The table of PyTorch's own settings."""
    yield row("setting", "honoured", "how, or why not")
    yield row("---", "---", "---")
    for key, answer in ANSWERS.items():
        quiet = f" (`{answer.default}` asks for nothing)" if answer.default else ""
        yield row(
            f"`{key}`", "yes" if answer.honoured else "no", answer.meaning + quiet
        )


def offload() -> Iterable[str]:
    """The table of training on cards that are too small, in milliseconds a step."""
    heads = ("program", "needs, of the card", "no limit", "bound", "oomph")
    every = ("checkpointing", "every second block")
    others = (*every, "save_on_cpu", "evict", "half the batch, twice")
    yield row(*heads, *others)
    yield row(*["---"] * (len(heads) + len(others)))
    for point in json.loads(OFFLOAD.read_text())["points"]:
        yield row(
            point["program"],
            f"{point['factor']} x",
            f"{point['floor_ms']:.0f}",
            f"{point['bound_ms']:.0f}",
            *(time_of(way) for way in point["ways"].values()),
        )


def time_of(way: dict[str, Any]) -> str:
    """A way's step time, marked if it needs offload, or that it died."""
    mark = "+" if way.get("has_offload") else ""
    return f"{way['step_ms']:.0f}{mark}" if way["finished"] else "dies"


TABLES = {
    "settings": settings,
    "statistics": statistics,
    "offload": offload,
    "PyTorch's settings": answers,
    "markers": markers,
    "claims": claims.table,
    "figures": claims.figures,
    "files": files.table,
    "release": release.checklist,
    **{f"checked: {name}": table for name, table in checked.TABLES.items()},
}


def filled(text: str) -> str:
    """The text with its tables as they should be."""
    for name, rows in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if begin not in text:
            continue
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        table = "\n".join(rows()).strip()
        text = f"{before}{begin}\n{table}\n\n{end}{after}"
    return text


def main() -> int:
    """Gives 1 if the tables are to be checked and differ."""
    differ = 0
    for path in FILES:
        before = path.read_text()
        after = filled(before)
        if "--check" not in sys.argv:
            path.write_text(after)
        elif before != after:
            name = path.relative_to(ROOT)
            print(f"{name}: the tables are out of date: python tools/readme.py")
            differ = 1
    return differ


if __name__ == "__main__":
    raise SystemExit(main())
