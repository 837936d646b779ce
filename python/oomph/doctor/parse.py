"""Finds errors in a text, and reads what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomph.doctor.amounts import Amount
from oomph.doctor.endings import ENDINGS, MEANINGS
from oomph.doctor.forms import PYTORCH
from oomph.doctor.found import Found
from oomph.doctor.lines import Squeezed

FORMS = {**PYTORCH, **ENDINGS}
_BEGINS = {key: re.compile(form.begins) for key, form in FORMS.items()}
_LINES = {key: re.compile(form.line) for key, form in FORMS.items() if form.line}
_RAISE = re.compile(r"\braise [\w.]+\(")  # a line of code in a traceback
_STARTS = [(word, key) for key, form in FORMS.items() for word in form.starts]
# What may stand between fields: parts that were left out, marks of lists.
_BETWEEN = re.compile(r"(?:\.{3,}|…|\[\.{3}\]|\(\.{3}\)|[-/•·,;])*")


def find(whole: Squeezed, begin: int, end: int) -> list[Found]:
    """The errors of a squeezed text that start between two positions, in order.

    Example:
        >>> from oomph.doctor.lines import Squeezed, split
        >>> text = "CUDA out of memory. Tried to allocate 2.34 GiB (GPU 0;"
        >>> find(Squeezed.of(split(text, 1)), 0, 9)[0].device
        0
    """
    errors = []
    position = begin
    for place, key in sorted(_places(whole.text, begin, end)):
        match = _BEGINS[key].match(whole.text, place) if place >= position else None
        if match is None:
            continue
        found = _parsed(key, match)
        count = _take_fields(found, key, whole.text)
        position = max(found.end, place + 1)
        if count >= max(1, FORMS[key].fields_min) or _is_meant(found, key, whole):
            errors.append(found)
    return errors


def _places(text: str, begin: int, end: int) -> Iterator[tuple[int, str]]:
    """Where a form may begin: words are found fast, and looked at later."""
    for word, key in _STARTS:
        place = text.find(word, begin, end + len(word) - 1)
        while place >= 0:
            yield place, key
            place = text.find(word, place + 1, end + len(word) - 1)


def _is_meant(found: Found, key: str, whole: Squeezed) -> bool:
    """Whether words without fields are an error, and not only words about one."""
    line = whole.lines[whole.index(found.start)].text
    if key not in _LINES:
        return FORMS[key].fields_min == 0 and not _RAISE.search(line)
    return bool(_LINES[key].search(line))


def _parsed(key: str, match: re.Match[str]) -> Found:
    form = "pytorch" if key == "pytorch_part" else key
    found = Found(form, match.start(), match.end())
    if key == "pytorch_part":
        found.flags.add("part")
    groups = match.groupdict()
    for name, value in groups.items():
        unit = groups.get(f"{name}_unit")
        if value is None or name.endswith("_unit"):
            continue
        if unit is not None:
            found.amounts[name] = Amount.read(value.replace(",", ""), unit)
        elif name == "device":
            found.device = int(value) if value else None
        elif name in ("backend", "detail"):
            setattr(found, name, value)
        else:
            found.facts[name.replace("_", " ")] = MEANINGS.get(value, value)
    return found


def _take_fields(found: Found, key: str, text: str) -> int:
    """Reads the fields that follow; how many there were."""
    count = 0
    while True:
        between = _BETWEEN.match(text, found.end)
        position = between.end() if between else found.end
        for pattern, take in FORMS[key].fields:
            match = pattern.match(text, position)
            if match is not None and match.end() > position:
                take(found, match)
                found.end = match.end()
                count += 1
                break
        else:
            return count
