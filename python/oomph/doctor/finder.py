"""Finds the errors of a log of any size: in a stream, each kind once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import BinaryIO

from oomph.doctor import lines, parse
from oomph.doctor.endings import ENDINGS
from oomph.doctor.found import Found
from oomph.doctor.lines import Line, Squeezed
from oomph.doctor.surroundings import Place, Traces, place_of

_CONTEXT_CHARS = 1 << 16  # before an error: its traceback
_ERROR_CHARS = 1 << 13  # the longest text of an error, with all its processes
_KINDS_MAX = 1000  # different errors; more are only counted
_SAME_EVENT_LINES = 40  # in which several lines report the same
_BLANK = b" \t\r\n\0|>`*\xc2\xa0" + b'"'  # and what else may stand between words
# An error's text has some of these, so a prefix in its midst leaves one whole.
_HINTS = (
    *(b"outofmem", b"triedto", b"toallocate", b"totalcapac", b"bypytorch", b"isfree"),
    *(b"memoryinuse", b"alreadyalloc", b"reservedin", b"bad_alloc", b"exceedallow"),
    *(b"allowedmem", b"devicelimit", b"withoom", b"alloc_failed", b"enoughmemory"),
    *(b"cudnn_status", b"tallocate", b"t_of_memory"),
    *(
        word.lower().encode().translate(None, _BLANK)
        for form in ENDINGS.values()
        for word in form.starts
    ),
    b"cudaooms:",
)
_HINT_BYTES = max(map(len, _HINTS))


@dataclass
class Sighting:
    """An error of a log, as often as it is there.

    Attributes:
        found: What its text gives, where it is first.
        text: That text, its white space made single blanks.
        place: Where the program was.
        line: The number of the line that it first starts in.
        last_line: The same, the last time.
        count: How often it is there.
        devices: Of all of them.
        ranks: Of all whose prefix says it.
    """

    found: Found
    text: str
    place: Place
    line: int
    last_line: int
    count: int = 1
    devices: set[int] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)


@dataclass
class Search:
    """What a log says.

    Attributes:
        errors: In their order, each once.
        traces: What the program seems to be and do.
        line_count: Lines read.
        uncounted: Errors beyond those that are kept apart.
        mentions: How often the words are there without an error.
    """

    errors: list[Sighting] = field(default_factory=list)
    traces: Traces = field(default_factory=Traces)
    line_count: int = 0
    uncounted: int = 0
    mentions: int = 0


def search(file: BinaryIO) -> Search:
    """Reads a log to its end, in bounded memory.

    Args:
        file: Opened for reading bytes.

    Raises:
        OSError: It cannot be read.
    """
    finder = _Finder()
    for piece, text in lines.decoded(file):
        finder.take(piece, text)
    return finder.result


class _Finder:
    """Looks at a window of the log that moves on, with some text before it."""

    def __init__(self) -> None:
        self.result = Search()
        self._kinds: dict[tuple[object, ...], Sighting] = {}
        self._context = ""  # looked at already
        self._pending = ""  # may have the start of an error
        self._number = 1  # of the line that the pending text starts in
        self._skip = 0  # squeezed characters at its start, of an error found already
        self._hot_chars = 0  # of the pending text, up to where it had a hint
        self._last = b""  # of what hints are looked for in: one may be cut in two

    def take(self, piece: bytes, text: str) -> None:
        """Goes on with a piece of the log; an empty one ends it."""
        self.result.traces.look_at(text, self.result.line_count + 1)
        self.result.line_count += text.count("\n")
        squeezed = self._last + piece.translate(None, _BLANK).lower()
        self._last = squeezed[-_HINT_BYTES:]
        self._pending += text
        if any(hint in squeezed for hint in _HINTS):
            self._hot_chars = len(self._pending)
        at_end = not piece
        if at_end and self._pending and not self._pending.endswith("\n"):
            self.result.line_count += 1
        cut = len(self._pending) if at_end else self._cut()
        if self._hot_chars > 0:
            self._look(cut)
        self._hot_chars = max(0, self._hot_chars - cut)
        done = self._pending[:cut]
        self._pending = self._pending[cut:]
        self._number += done.count("\n")
        self._context = (self._context + done)[-_CONTEXT_CHARS:]

    def _cut(self) -> int:
        """Up to where errors are whole that start before it; after a line's end."""
        least = max(0, len(self._pending) - _ERROR_CHARS)
        return self._pending.rfind("\n", 0, least) + 1 or least

    def _look(self, cut: int) -> None:
        before = lines.split(self._context, self._number - self._context.count("\n"))
        if self._context.endswith("\n"):
            before.pop()
        now = lines.split(self._pending[:cut], self._number)
        if self._pending[:cut].endswith("\n"):
            now.pop()
        rest = lines.split(
            self._pending[cut:], self._number + self._pending.count("\n", 0, cut)
        )
        whole = Squeezed.of([*before, *now, *rest])
        starts = [*whole.starts, len(whole.text)]
        begin = starts[len(before)] + self._skip
        end = starts[len(before) + len(now)]
        self._skip = 0
        for found in parse.find(whole, begin, end):
            self._add(found, whole)
            self._skip = max(0, found.end - end)
        words = len(re.findall("(?i)outofmemory", whole.text[begin:end]))
        self.result.mentions += words

    def _add(self, found: Found, whole: Squeezed) -> None:
        first = whole.index(found.start)
        last = whole.index(max(found.start, found.end - 1))
        line = whole.lines[first]
        place = place_of(whole.lines, first, last)
        rank = line.rank if line.rank >= 0 else place.rank
        if self._is_known(found, line.number):
            return
        kind = _kind(found, place)
        sighting = self._kinds.get(kind)
        if sighting is None:
            if len(self._kinds) >= _KINDS_MAX:
                self.result.uncounted += 1
                return
            sighting = Sighting(
                found, _text(whole.lines[first : last + 8]), place, line.number, 0, 0
            )
            self._kinds[kind] = sighting
            self.result.errors.append(sighting)
        if line.number != sighting.place.repeated_at:
            sighting.count += 1
        sighting.last_line = line.number
        if found.device is not None:
            sighting.devices.add(found.device)
        if rank >= 0:
            sighting.ranks.add(rank)

    def _is_known(self, found: Found, line: int) -> bool:
        """Whether what a text says was said some lines before; the surest is kept."""
        again = parse.FORMS[found.form].again
        for earlier in reversed(self.result.errors) if again else ():
            if line - earlier.last_line > _SAME_EVENT_LINES:
                continue
            if again == "any":
                return True
            if parse.FORMS[earlier.found.form].again == again:
                surer, other = sorted((earlier.found, found), key=_doubt)
                surer.facts = {**other.facts, **surer.facts}
                surer.amounts = {**other.amounts, **surer.amounts}
                earlier.found, earlier.last_line = surer, line
                return True
        return False


def _doubt(found: Found) -> int:
    return list(parse.FORMS).index(found.form)


def _kind(found: Found, place: Place) -> tuple[object, ...]:
    """What is reported once: the same request at the same line, on whichever device."""
    if found.form == "warning":
        return (found.form,)
    names = ("requested", "total")
    amounts = [str(found.amount(name)) for name in names]
    return (found.form, found.backend, found.detail, *amounts, place.line)


def _text(of: list[Line]) -> str:
    return " ".join(" ".join(line.text.split()) for line in of)[:2000]
