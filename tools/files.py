"""What each source file is: the first sentence of its opening, for docs/files.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from claims import row

ROOT = Path(__file__).parent.parent
KINDS = {".c", ".h", ".cpp", ".hpp", ".py"}
OPENING = re.compile(r"\A(?:/\* (.*?)\*/|((?://[^\n]*\n)+))", re.DOTALL)
SENTENCE = re.compile(r"(.*?[^.]\.)(?=\s|$)")  # up to a full stop
ROLE = re.compile(r":\w+:(`[^`]+`)")


def paths() -> list[Path]:
    """The files of csrc and python, folder by folder."""
    found = (path for root in ("csrc", "python") for path in (ROOT / root).rglob("*"))
    files = (
        path.relative_to(ROOT)
        for path in found
        if path.suffix in KINDS and "." not in path.parent.name
    )
    return sorted(files, key=lambda path: (path.parent, path))


def opening(path: Path) -> str:
    """The comment or docstring that a file begins with; "": none."""
    text = (ROOT / path).read_text()
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text)) or ""
    found = OPENING.match(text)
    if found is None:
        return ""
    lines = (line.strip().lstrip("*/ ") for line in found[found.lastindex].splitlines())
    return "\n".join(lines).removeprefix(f"{path.name} - ")


def sentence(path: Path) -> str:
    """The first sentence of a file's opening; where a .c file has none, its header's.

    Raises:
        ValueError: There is none, or it does not end.
    """
    text = opening(path)
    if not text and path.suffix == ".c":
        text = opening(path.with_suffix(".h"))
    found = SENTENCE.match(" ".join(text.partition("\n\n")[0].split()))
    if found is None:
        raise ValueError(f"{path} does not open with a sentence that says what it is")
    return marked(found[1][0].upper() + found[1][1:])


def marked(text: str) -> str:
    """A sentence as Markdown."""
    parts = ROLE.sub(r"\1", text).replace("``", "`").split("`")
    parts[::2] = [re.sub(r"([*_<|])", r"\\\1", part) for part in parts[::2]]  # no code
    return "`".join(parts)


def table() -> Iterable[str]:
    """A heading and a table for each folder; a row may stand for x.c and x.h."""
    for folder, inside in groupby(paths(), key=lambda path: path.parent):
        yield from (f"## {folder}", "", row("file", "what it is"), row("---", "---"))
        same = groupby(inside, key=lambda path: (path.stem, sentence(path)))
        for (_, text), files in same:
            links = (f"[{path.name}](../{path})" for path in files)
            yield row(", ".join(links), text)
        yield ""
