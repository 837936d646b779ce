"""Which line of the user's code changes what a slot holds, seen as it happens.

For a step, or a few, each line that the program executes is followed. After each the
slots are looked at: the line before a change made it. Nothing is read from the source
but what the line calls the slot.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, NamedTuple

from oomph import _C
from oomph.holders.frames import variables
from oomph.holders.lines import Line, line_of
from oomph.leaks.lines import source
from oomph.leaks.lines.slots import Slot
from oomph.leaks.lines.uses import Uses
from oomph.memory.sites import is_user

_EVENTS_MAX = 100_000  # of one step: calls, lines and returns of all code
LINES_MAX = 4_000  # of the user's, looked at in one step
_AGREE, _MOSTLY = 3, 0.75  # of the changes after lines that do not name it
_INNER_MAX = 64  # that came empty, followed in one step
_CALL, _RETURN = 0, 3  # kinds of events, as _C gives them
_WAIT_S = 0.5  # for another thread, which takes some microseconds


@dataclass
class Changes:
    """What happened to a slot.

    Attributes:
        lines: How often each line changed it, by whether the line names the slot.
        shrank: Whether something was taken out again.
        size_change: By how many items a container has more in the end.
        names: What lines that changed it call it.
        callers: Of each line, where its function was called in that round.
        opened: Lines that put in what was empty yet, which another fills.
    """

    lines: Counter[tuple[bool, Line]] = field(default_factory=Counter)
    shrank: bool = False
    size_change: int = 0
    names: set[str] = field(default_factory=set)
    callers: dict[Line, Line] = field(default_factory=dict)
    opened: set[Line] = field(default_factory=set)

    def add(self, later: Changes) -> None:
        """What happened in a later round."""
        self.lines += later.lines
        self.shrank |= later.shrank
        self.size_change += later.size_change
        self.names |= later.names
        self.callers |= later.callers
        self.opened |= later.opened

    @property
    def line(self) -> Line | None:
        """The line that changed it most often, rather one that names it.

        If none does, it must be nearly always the same: another thread, in code of a
        library, may have changed it meanwhile.
        """
        named = Counter({at: n for (is_named, at), n in self.lines.items() if is_named})
        for line, _ in named.most_common(1):
            return line
        for (_, line), count in self.lines.most_common(1):
            if count >= _AGREE and count >= _MOSTLY * self.lines.total():
                return line
        return None

    @property
    def all(self) -> list[Line]:
        """All lines that changed it."""
        return [*(line for _, line in self.lines), *self.opened]

    @property
    def is_named(self) -> bool:
        """Whether that line names it; else it calls what changes it."""
        return any(named for named, _ in self.lines)


@dataclass(eq=False)
class Watched:
    """A slot, and as it was when it was last looked at.

    Attributes:
        slot: The slot.
        state: Of it.
        changes: What happened to it.
        within: The place of the slot that it came into empty; None: it is one itself.
        is_filled: Whether it is not empty any more.
    """

    slot: Slot
    state: Hashable
    changes: Changes
    within: Hashable = None
    is_filled: bool = False


_Last = tuple[FrameType, int]  # a function that runs, and the line that it is at


class Follower:
    """Follows the lines of all threads.

    Args:
        slots: What is looked at.
        skipped: So many lines pass before.
        uses: Of what references are counted.
        unfilled: What came empty into slots in rounds before.

    Attributes:
        unfilled: The same, once it has ended.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        skipped: int,
        uses: Sequence[Uses] = (),
        unfilled: Sequence[Watched] = (),
    ) -> None:
        places = {slot.place: Watched(slot, slot.state(), Changes()) for slot in slots}
        self._watched = [*places.values()]
        for each in unfilled:
            if each.within in places:
                outer = places[each.within]
                self._watched.append(replace(each, changes=outer.changes))
        self.unfilled: list[Watched] = []
        self._last: dict[int, _Last | None] = {}  # by thread
        self._uses = uses
        self._skipped, self._rest = skipped, LINES_MAX
        self._lock = threading.Lock()
        self._called: set[int] = set()  # frames that began since, and still run

    def start(self) -> bool:
        """Begins, unless another tracer follows this thread; whether it did."""
        if sys.gettrace() is not None or not (self._watched or self._uses):
            return False
        source.meet_files()
        self._last = {
            thread: _innermost(frame) for thread, frame in sys._current_frames().items()
        }
        _C.follow_lines(self._event, is_user, _EVENTS_MAX)
        if threading.gettrace() is None:
            threading.settrace(self._begin_thread)
        return True

    def _begin_thread(self, *_event: object) -> None:
        """A thread begins, and calls this as its tracer."""
        _C.follow_too()

    def stop(self) -> dict[Hashable, Changes]:
        """Ends it, in the same thread; what happened to each slot, by its place."""
        if threading.gettrace() == self._begin_thread:
            threading.settrace(None)  # type: ignore[arg-type]
        is_followed = type(sys.gettrace()).__name__ == "LineFollower"
        _C.unfollow_lines()
        found: dict[Hashable, Changes] = {}
        if self._lock.acquire(timeout=_WAIT_S):
            if is_followed and self._skipped == 0:  # else nothing was looked at
                self._look()
            found = {each.slot.place: each.changes for each in self._watched}
            inner = (each for each in self._watched if each.within is not None)
            self.unfilled = [each for each in inner if not each.is_filled]
            self._lock.release()
        for uses in self._uses:
            uses.end_round()
        self._watched, self._last = [], {}
        return found

    @property
    def was_cut(self) -> bool:
        """Whether there were more lines than it looks at."""
        return self._rest < 0

    def _event(self, frame: FrameType, what: int, result: object) -> None:
        """A line is about to run, or a call begins or ends.

        Never waits for long: who has the lock may run a finalizer of the program, and
        that may wait for this thread.
        """
        if not self._lock.acquire(timeout=_WAIT_S):
            _C.unfollow_lines()
            return
        try:
            self._follow(frame, what, result)
        finally:
            self._lock.release()

    def _follow(self, frame: FrameType, what: int, result: object) -> None:
        thread = threading.get_ident()
        if what == _CALL:
            self._called.add(id(frame))
        if self._skipped > 0:
            if what == _RETURN:
                self._called.discard(id(frame))
            self._skipped -= 1
            if self._skipped == 0:
                for each in self._watched:
                    each.state = each.slot.state()
                self._last[thread] = frame, frame.f_lineno
            return
        self._rest -= 1
        if self._rest < 0 or not (self._watched or self._uses):
            _C.unfollow_lines()
            return
        self._look()
        self._count(frame, what, result)
        if what != _RETURN:
            self._last[thread] = frame, frame.f_lineno
            return
        self._called.discard(id(frame))
        self._last[thread] = _innermost(frame.f_back)
        self._watched = [w for w in self._watched if w.slot.holder is not frame]

    def _look(self) -> None:
        """Attributes what has changed to the line before."""
        came: list[Watched] = []
        for each in self._watched:
            slot, before = each.slot, each.state
            each.state = slot.state()
            if each.state == before:
                continue
            more = _size(each.state) - _size(before)
            each.changes.size_change += more if each.within is None else 0
            each.changes.shrank |= more < 0
            inner = slot.unfilled() if more > 0 else None
            if inner is not None:  # what fills that is meant
                within = slot.place if each.within is None else each.within
                came.append(Watched(inner, inner.state(), each.changes, within))
                if (found := self._change(slot)) is not None:
                    each.changes.opened.add(found.line)
                    each.changes.names |= found.names
            elif more >= 0:
                self._note(slot, each.changes)
                each.is_filled = True
        self._watched += came[: max(0, _INNER_MAX - len(self._watched))]

    def _count(self, frame: FrameType, what: int, result: object) -> None:
        """Counts references that the function's line before has added."""
        if not self._uses:
            return
        last = self._last.get(threading.get_ident())
        before = None
        if what != _CALL and last is not None and last[0] is frame:
            before = replace(line_of(frame), line=last[1])
        for uses in self._uses:
            uses.look(frame, before, result)
            if what == _RETURN:
                uses.leave(frame)

    def _change(self, slot: Slot) -> _Change | None:
        """This thread's line has changed it, unless only another's names it."""
        thread = threading.get_ident()
        others = (last for other, last in self._last.items() if other != thread)
        found = [
            _change_of(slot, last)
            for last in (self._last.get(thread), *others)
            if last is not None
        ]
        found.sort(key=lambda c: (slot.name in c.names, c.is_named), reverse=True)
        return found[0] if found else None

    def _note(self, slot: Slot, changes: Changes) -> None:
        if (found := self._change(slot)) is None:
            return
        changes.names |= found.names
        changes.lines[found.is_named, found.line] += 1
        is_called = id(found.frame) in self._called
        caller = _innermost(found.frame.f_back) if is_called else None
        if caller is not None:
            changes.callers[found.line] = replace(line_of(caller[0]), line=caller[1])


class _Change(NamedTuple):
    """A line that may have changed a slot, whether it names it, and how."""

    line: Line
    is_named: bool
    names: set[str]
    frame: FrameType


def _change_of(slot: Slot, last: _Last) -> _Change:
    frame, number = last
    line = replace(line_of(frame), line=number)
    statement = source.statement(line.file, number)
    if statement is None:
        return _Change(line, True, set(), frame)
    names = _names_of(slot, statement, frame)
    line = replace(line, line=statement.lineno)
    return _Change(line, bool(names), names, frame)


def _size(state: object) -> int:
    """Of a container; 0 for the state of a name."""
    return state if isinstance(state, int) else 0


def _innermost(frame: FrameType | None) -> tuple[FrameType, int] | None:
    """The nearest frame of the user's, and the line that it is at."""
    while frame is not None and not is_user(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame, frame.f_lineno)


def _names_of(slot: Slot, statement: ast.stmt, frame: FrameType) -> set[str]:
    """What a statement calls a slot: the names that lead to its holder."""
    found = set()
    known: dict[str, Any] = {}
    for node in source.own_nodes(statement):
        is_name = isinstance(node, (ast.Attribute, ast.Name))
        if is_name and slot.name and source.last_name(node) == slot.name:
            found.add(slot.name)
        if isinstance(node, ast.Name):
            known = known or variables(frame)
            value = known.get(node.id, frame.f_globals.get(node.id))
            if value is not None and slot.is_meant_by(value):
                found.add(node.id)
    return found
