"""Draws who calls whom, folder by folder: docs/folders_*.svg.

From the symbols of the objects, the includes and the imports, as tests/test_layers.py
reads them, which also says when a picture is out of date. A folder stands above all
that it uses; an arrow that other arrows imply is left out.
"""

from __future__ import annotations

import graphlib
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 150, 34, 26, 46, 16  # pixels

Graph = Mapping[str, set[str]]
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
width="{width}" font-family="sans-serif" font-size="13">
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" \
markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#567"/></marker></defs>
<rect width="{width}" height="{height}" rx="8" fill="#fff"/>
"""


def folders(files: Graph, folder_of: Mapping[str, str]) -> dict[str, set[str]]:
    """Which folders each folder uses, itself left out; fails on a circle."""
    found: dict[str, set[str]] = {folder_of[name]: set() for name in files}
    for name, others in files.items():
        found[folder_of[name]] |= {folder_of[other] for other in others}
    graph = {name: others - {name} for name, others in found.items()}
    graphlib.TopologicalSorter(graph).prepare()
    return graph


def below(graph: Graph, name: str) -> set[str]:
    """All that it uses in the end."""
    return graph[name].union(*(below(graph, other) for other in graph[name]))


def reduced(graph: Graph) -> dict[str, set[str]]:
    """The graph without what is implied."""
    return {
        name: {o for o in others if not any(o in below(graph, p) for p in others - {o})}
        for name, others in graph.items()
    }


def floor(graph: Graph, name: str) -> int:
    """How many folders lie below it, one above the other."""
    return 1 + max((floor(graph, other) for other in graph[name]), default=-1)


def drawn(graph: Graph) -> str:
    """The picture, as SVG."""
    graph = reduced(graph)
    rows: dict[int, list[str]] = {}
    for name in sorted(graph):
        rows.setdefault(floor(graph, name), []).append(name)
    widest = max(map(len, rows.values()))
    width = 2 * MARGIN + widest * (BOX_WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + len(rows) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    place = {}  # of the middle of each box
    for number, names in rows.items():
        y = height - MARGIN - BOX_HEIGHT // 2 - number * (BOX_HEIGHT + GAP_Y)
        for i, name in enumerate(names):
            shift = (i - (len(names) - 1) / 2) * (BOX_WIDTH + GAP_X)
            place[name] = (round(width / 2 + shift), y)
    lines = [HEAD.format(width=width, height=height)]
    for name, others in sorted(graph.items()):
        lines += [arrow(place, name, other) for other in sorted(others)]
    lines += [box(name, *place[name]) for name in sorted(graph)]
    return "".join(lines) + "</svg>\n"


def arrow(place: Mapping[str, tuple[int, int]], start: str, end: str) -> str:
    """From the lower edge of one box to the upper edge of another, past all others."""
    (x1, y1), (x2, y2) = place[start], place[end]
    in_the_way = [x for x, y in place.values() if y1 < y < y2 and x == x1 == x2]
    bend = BOX_WIDTH * 3 // 4 if in_the_way else 0
    y1, y2 = y1 + BOX_HEIGHT // 2, y2 - BOX_HEIGHT // 2
    curve = f"C{x1 + bend} {y1 + GAP_Y} {x2 + bend} {y2 - GAP_Y}"
    return (
        f'<path d="M{x1} {y1}{curve} {x2} {y2}" fill="none" stroke="#567" '
        'marker-end="url(#tip)"/>\n'
    )


def box(name: str, x: int, y: int) -> str:
    """A folder."""
    return (
        f'<rect x="{x - BOX_WIDTH // 2}" y="{y - BOX_HEIGHT // 2}" '
        f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" fill="#e0f2f1" '
        f'stroke="#00796b"/><text x="{x}" y="{y + 5}" text-anchor="middle" '
        f'fill="#123">{escape(name)}</text>\n'
    )


def picture(name: str) -> Path:
    """Where a picture lies."""
    return ROOT / "docs" / f"folders_{name}.svg"


def of_files(calls: Graph, includes: Graph) -> str:
    """The picture of the core, or of the simulated driver, by its files."""
    files = {name: {*calls.get(name, ()), *includes[name]} for name in includes}
    place = {name: str(Path(name).parent) for name in files}
    face = (".", "oomph")  # the public header, and its parts
    return drawn(
        folders(files, {n: "oomph.h" if p in face else p for n, p in place.items()})
    )


def of_python(modules: Graph) -> str:
    """The picture of the Python packages, by their modules.

    The modules of oomph itself stand for themselves: people import them by name.
    """
    packages = {m.rpartition(".")[0] for m in modules if "." in m} - {"oomph"}
    inside = {m: m.rpartition(".")[0] for m in modules}
    place = {m: inside[m] if inside[m] in packages else m for m in modules}
    return drawn(folders(modules, place))


def main() -> None:
    """Draws all of them."""
    sys.path.insert(0, str(ROOT / "tests"))
    import test_layers as layers

    for kind, names in (("core", layers.OURS), ("driver", layers.DRIVER)):
        sources = [layers.CSRC / name for name in names if name.endswith(".c")]
        with tempfile.TemporaryDirectory() as out:
            calls = layers.calls(layers.symbols_of(sources, Path(out)))
        picture(kind).write_text(of_files(calls, layers.included(names)))
    picture("python").write_text(of_python(layers.python_imports()))


if __name__ == "__main__":
    main()
