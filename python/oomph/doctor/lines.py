"""A log without its disguise: decoded, and without colours, prefixes and white space.

A terminal wraps lines anywhere, even within a number, and what sends logs on puts
prefixes before each line. So lines lose their prefixes, and errors are looked for in a
text without any white space.
"""

from __future__ import annotations

import bisect
import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

CHUNK_BYTES = 1 << 20
_PIECE_CHARS = 1 << 13  # what has no line ends is cut into pieces of this length
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_COLOUR = re.compile(
    r"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|\\e|\^\[)\[[0-?]*[ -/]*[@-~]"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]|[^\n]\x08"
    r"|(?<![\w.)\]])\[\d{1,2}(?:;\d{1,3}){0,4}m"  # that lost its escape character
)
_DATE = r"\d{4}[-/]\d\d[-/]\d\d|\d\d[-/]\d\d(?=[ T]\d\d:)"
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?[+-]\d\d:?\d\d|Z)?"
_LEVEL = r"(?:ERROR|WARNING|WARN|INFO|DEBUG|CRITICAL|FATAL|stderr|stdout)"
# What stands before a line: who wrote it, when, how important it is; or quotes it.
_PREFIX = re.compile(
    r"(?:\s*(?:"
    r"\[?(?:(?:local_)?rank|Rank|default|trainer|worker|GPU)[ _=:-]?(?P<r1>\d+)[]:]+:?"
    r"|\((?:[\w.-]+ )*(?:TP|rank=|Rank )(?P<r2>\d+)[^()\n]{0,60}\)"
    r"|\((?:[\w.-]+ )*pid=\d+[^()\n]{0,60}\)"
    rf"|(?P<r3>\d{{1,4}}):(?=\s)|\[(?P<r4>\d{{1,4}})\]:"
    rf"|\[?(?:{_DATE})?[ T]?{_TIME}\]?:?(?=\s|\[|-|$)|\[?(?:{_DATE})\]?(?=\s)"
    rf"|[A-Z][a-z]{{2}} [ \d]\d {_TIME} [\w.-]+ [\w./-]+(?:\[\d+\])?:"
    r"|\d{1,7} (?=\[(?:local_)?rank\d)"  # a count of uniq -c
    r"|[\w.-]+:\d+:\d+ \[(?P<r5>\d+)\](?: [\w./-]+\.(?:cc|h):\d+)?(?= NCCL)"
    rf"|\[?{_LEVEL}\]?:?(?=\s)|\[[\w./-]+\.(?:py|cpp):\d+\]"
    r"|E(?=\s{2})|[\w.-]{1,40}\s*\|(?=\s)|SUBPROCESS:|>(?!>)|\#(?=\s)|//(?=\s)|[│┃║|]"
    r"))+ ?"
)
_NOISE = re.compile(r"(?:\\+[nrt])+|[\s*`|│┃║\u200b\u2060\ufeff\"]+")


@dataclass(frozen=True)
class Line:
    """A line of a log, or a piece of a very long one.

    Attributes:
        number: Of the line in the file, from 1.
        text: Without colours and prefixes.
        rank: Of the process that wrote it, as its prefix says; -1: it does not.
    """

    number: int
    text: str
    rank: int


def decoded(file: BinaryIO) -> Iterator[tuple[bytes, str]]:
    """A file in pieces: as bytes, and as text.

    Without a mark at its start it is taken for UTF-8. NULs are left out, which makes
    UTF-16 right as far as it is ASCII. What cannot be decoded is replaced.

    Raises:
        OSError: It cannot be read.
    """
    decoder: codecs.IncrementalDecoder | None = None
    while True:
        piece = file.read(CHUNK_BYTES)
        if decoder is None:
            found = [(mark, name) for mark, name in _MARKS if piece.startswith(mark)]
            mark, name = found[0] if found else (b"", "utf-8")
            decoder = codecs.getincrementaldecoder(name)("replace")
            body = piece[len(mark) :]
        else:
            body = piece
        yield piece, decoder.decode(body, not piece).replace("\0", "")
        if not piece:
            return


def split(text: str, number: int) -> list[Line]:
    """The lines of a text whose first line has a number; carriage returns end lines."""
    found = []
    for offset, whole in enumerate(text.split("\n")):
        for line in whole.split("\r") if "\r" in whole else (whole,):
            for start in range(0, max(1, len(line)), _PIECE_CHARS):
                found.append(
                    _cleaned(line[start : start + _PIECE_CHARS], number + offset)
                )
    return found


def _cleaned(line: str, number: int) -> Line:
    if "[" in line or "\x1b" in line or "\b" in line:
        line = _COLOUR.sub("", line)
    prefix = _PREFIX.match(line)
    rank = -1
    if prefix is not None:
        named = [number for number in prefix.groups() if number]
        rank = int(named[0]) if named else -1
        line = line[prefix.end() :]
    return Line(number, line, rank)


@dataclass(frozen=True)
class Squeezed:
    """Lines as one text without white space, and where each of them starts in it."""

    lines: list[Line]
    text: str
    starts: list[int]

    @classmethod
    def of(cls, lines: list[Line]) -> Squeezed:
        """Those lines, squeezed."""
        starts, parts, length = [], [], 0
        for line in lines:
            starts.append(length)
            part = _NOISE.sub("", line.text)
            parts.append(part)
            length += len(part)
        return cls(lines, "".join(parts), starts)

    def index(self, position: int) -> int:
        """The index of the line that a position of the text lies in."""
        return bisect.bisect_right(self.starts, position) - 1
