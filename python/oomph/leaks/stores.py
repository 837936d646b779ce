"""Which line of the user's code put something where it is held.

References tell what holds a tensor, not who put it there. The holder has a name,
though, and the user's source says where something is put under that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oomph.leaks import source
from oomph.leaks.references import Hop
from oomph.leaks.source import Line
from oomph.leaks.statements import ATTRIBUTE, Statements, Store, Variable

_NAMES_MAX = 32  # of one thing


class Stores:
    """What the user's files say about names; they are read when first needed."""

    def __init__(self, files: Iterable[str]) -> None:
        self._rest = iter(files)
        self._read: list[Statements] = []

    def _files(self) -> Iterator[Statements]:
        """The nearest first."""
        yield from self._read
        for file in self._rest:
            tree = source.tree(file)
            if tree is not None:
                self._read.append(Statements(file, tree))
                yield self._read[-1]

    def _meant(self, hop: Hop) -> Iterator[Variable]:
        """The variables that a holder's name may stand for, the likeliest first."""
        if hop.kind in ("attr", "class"):
            yield ATTRIBUTE, ATTRIBUTE, hop.name
            return
        for statements in self._files():
            if hop.kind == "global":
                yield statements.file, "", hop.name
            elif hop.line is not None and statements.file == hop.line.file:
                for path, _ in statements.parameters.get(hop.line.function, []):
                    yield statements.variable(hop.name, path)
                yield statements.file, "", hop.name

    def _found(self, variable: Variable, kind: str) -> list[Store]:
        """The stores of a variable, or of an attribute in the nearest file with any."""
        for statements in self._files():
            if variable[0] in (ATTRIBUTE, statements.file):
                found = [
                    store
                    for store in statements.stores
                    if store.to == variable and store.kind == kind
                ]
                if found:
                    return found
        return []

    def _others(self, variable: Variable) -> Iterator[Variable]:
        """What the same thing is called elsewhere: by assignment, or as an argument."""
        for statements in list(self._files()):
            yield from (to for of, to in statements.same if of == variable)
            for what, function, place in statements.passed:
                if what == variable:
                    yield from self._parameters(function, place)

    def _parameters(self, function: str, place: int | str) -> Iterator[Variable]:
        for statements in self._read:
            for path, names in statements.parameters.get(function, []):
                if isinstance(place, str):
                    if place in names:
                        yield statements.file, path, place
                elif place < len(names):
                    yield statements.file, path, names[place]

    def _names(self, hop: Hop) -> Iterator[Variable]:
        """All that a thing is called, first what the hop calls it."""
        known = list(dict.fromkeys(self._meant(hop)))
        yield from known
        for variable in known:  # grows as it goes
            for other in self._others(variable):
                if other not in known and len(known) < _NAMES_MAX:
                    known.append(other)
                    yield other

    def into(self, hop: Hop) -> Store | None:
        """Where something is put into what a hop names, here or under another name."""
        for variable in self._names(hop):
            found = self._found(variable, "item")
            if hop.foreign:  # no class of the user's fills its attributes as its own
                found = [store for store in found if not store.owner]
            if found:
                return max(found, key=lambda s: (s.owner == hop.holder, s.in_loop))
        return None

    def binding(self, hop: Hop) -> Store | None:
        """Where what a hop names is given; in a loop rather than before it."""
        for variable in self._meant(hop):
            found = self._found(variable, "bind") + self._found(variable, "item")
            if found:
                return max(found, key=lambda s: (s.owner == hop.holder, s.in_loop))
        return None

    def made(self, hop: Hop) -> Store | None:
        """Where what a hop names is made first."""
        for variable in self._meant(hop):
            found = self._found(variable, "bind")
            if found:
                return min(found, key=lambda store: store.line.line)
        return None

    def attribute(self, name: str) -> Store | None:
        """Where an object's attribute is given from outside of what makes it."""
        found = self._found((ATTRIBUTE, ATTRIBUTE, name), "bind")
        outside = [store for store in found if store.line.function != "__init__"]
        return next(iter(outside or found), None)

    def joining(self, line: Line) -> Store | None:
        """Where a line joins what a name holds with more, under the same name."""
        for statements in self._files():
            if statements.file == line.file:
                for store in statements.stores:
                    if store.joins and store.line.line <= line.line <= store.last_line:
                        return store
        return None

    def is_bounded(self, store: Store, hop: Hop | None = None) -> bool:
        """Whether something takes out again what a store puts in, time after time.

        Args:
            store: That puts something in.
            hop: What it is put into, which may have more names.
        """
        names = {store.to, *(self._names(hop) if hop is not None else ())}
        return any(
            _limits(other, store)
            for statements in self._read
            for other in statements.stores
            if other.to in names
        )


def _limits(other: Store, store: Store) -> bool:
    """Whether one takes away what the other puts in."""
    elsewhere = other.line.function != store.line.function
    if other.kind == "shrink":
        return other.in_loop or elsewhere or other.is_attribute
    if other.kind != "bind" or other.joins or other.begins:
        return False
    if other.is_attribute:
        return elsewhere and other.line.function != "__init__"
    return other.in_loop or (elsewhere and other.line.function != "")
