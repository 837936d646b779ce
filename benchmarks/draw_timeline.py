"""Draws what a step did, and when, as benchmarks/offload.py recorded it.

    python -m oomph run --simulate CARD --set offload:off benchmarks/offload.py \\
        gpt --batch 16 --timeline free.json
    python -m oomph run --simulate CARD --set device_limit:9.64GiB \\
        benchmarks/offload.py gpt --batch 16 --timeline limited.json
    python benchmarks/draw_timeline.py free.json limited.json docs/timeline.svg
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

LEFT, WIDTH, LANE, GAP, TOP = 150, 760, 34, 18, 34
JOIN_MS = 0.05  # copies so close are drawn as one
FONT = "font-family='sans-serif' font-size='12'"
COLOURS = {
    "forward": "#4878a8",
    "backward": "#5a9a68",
    "optimizer": "#c08830",
    "out": "#a85048",
    "in": "#7860a0",
}


@dataclass(frozen=True)
class Span:
    """A stretch of a lane, in milliseconds."""

    kind: str
    start: float
    end: float
    text: str = ""


def compute(record: dict[str, Any]) -> list[Span]:
    """The parts of the step, from each mark to the next."""
    spans = []
    for (name, start), (_, end) in pairwise(record["marks"]):
        kind, _, block = name.partition(" ")
        spans.append(Span(kind, start, end, block))
    return spans


def copies(record: dict[str, Any], way: str) -> list[Span]:
    """The copies one way; those that follow at once are one."""
    spans: list[Span] = []
    for copy in sorted(record["copies"], key=lambda c: c["start_ms"]):
        if copy["way"] != way:
            continue
        start, end = copy["start_ms"], copy["end_ms"]
        if spans and start - spans[-1].end < JOIN_MS:
            start = spans.pop().start
        spans.append(Span(way, start, end))
    return spans


class Picture:
    """Lanes under one another, over one scale of time."""

    def __init__(self, end_ms: float) -> None:
        self._scale = WIDTH / end_ms
        self._end_ms = end_ms
        self._lines: list[str] = []
        self._y = TOP

    def lane(self, title: str, spans: list[Span]) -> None:
        middle = self._y + LANE / 2 + 4
        self._lines.append(
            f"<text x='{LEFT - 10}' y='{middle:.0f}' text-anchor='end' {FONT}>"
            f"{escape(title)}</text>"
        )
        for span in spans:
            self._add(span, middle)
        self._y += LANE + GAP

    def _add(self, span: Span, middle: float) -> None:
        x, wide = LEFT + span.start * self._scale, (span.end - span.start) * self._scale
        self._lines.append(
            f"<rect x='{x:.1f}' y='{self._y}' width='{max(wide, 0.5):.1f}' "
            f"height='{LANE}' fill='{COLOURS[span.kind]}' stroke='white' "
            f"stroke-width='0.5'><title>{span.kind} {span.text} "
            f"{span.start:.1f} to {span.end:.1f} ms</title></rect>"
        )
        if span.text and wide > 8 * len(span.text):
            self._lines.append(
                f"<text x='{x + wide / 2:.1f}' y='{middle:.0f}' fill='white' "
                f"text-anchor='middle' {FONT}>{span.text}</text>"
            )

    def _axis(self) -> None:
        steps = (10, 20, 50, 100, 200, 500, 1000)
        step = next(ms for ms in steps if ms * 12 > self._end_ms)
        for ms in range(0, int(self._end_ms) + 1, step):
            x = LEFT + ms * self._scale
            self._lines.append(
                f"<text x='{x:.1f}' y='{TOP - 12}' text-anchor='middle' {FONT}>"
                f"{ms} ms</text><line x1='{x:.1f}' y1='{TOP - 6}' x2='{x:.1f}' "
                f"y2='{self._y - GAP}' stroke='#bbb' stroke-width='0.5'/>"
            )

    def _legend(self) -> None:
        x = LEFT
        for kind in ("forward", "backward", "optimizer"):
            self._lines.append(
                f"<rect x='{x}' y='{self._y}' width='12' height='12' "
                f"fill='{COLOURS[kind]}'/><text x='{x + 18}' y='{self._y + 11}' {FONT}>"
                f"{kind}</text>"
            )
            x += 100
        self._lines.append(
            f"<text x='{x}' y='{self._y + 11}' {FONT}>numbers: blocks of the model; "
            "a block lasts until the next begins, waits included</text>"
        )

    def text(self) -> str:
        self._axis()
        self._legend()
        size = f"{LEFT + WIDTH + 40} {self._y + 30}"
        body = "\n".join(self._lines)
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {size}'>\n"
            f"<rect width='100%' height='100%' fill='white'/>\n{body}\n</svg>\n"
        )


def main() -> None:
    free, limited = (json.loads(Path(path).read_text()) for path in sys.argv[1:3])
    picture = Picture(limited["marks"][-1][1])
    picture.lane("without a limit", compute(free))
    picture.lane("with 2/3 of it: GPU", compute(limited))
    picture.lane("link to the host", copies(limited, "out"))
    picture.lane("link to the device", copies(limited, "in"))
    Path(sys.argv[3]).write_text(picture.text())


if __name__ == "__main__":
    main()
