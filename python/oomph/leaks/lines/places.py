"""The places of which one is meant by a suspect, until a line is seen to fill it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from oomph.holders.lines import Line
from oomph.leaks.lines import source
from oomph.leaks.lines.following import Changes
from oomph.leaks.lines.slots import Slot
from oomph.leaks.lines.uses import Uses

Filled = tuple[Slot, Changes]
_ROUNDS_ENOUGH = 8  # followed: what is filled now and then was seen


@dataclass
class Places:
    """What may grow by each tensor that is kept, and what happened to it so far.

    Attributes:
        containers: On the way out from the tensor; the innermost that grows is meant.
        names: On the way, which may be bound anew; meant if no container grows.
        uses: Of what something in C holds.
    """

    containers: list[Slot] = field(default_factory=list)
    names: list[Slot] = field(default_factory=list)
    uses: Uses | None = None
    _changes: dict[Hashable, Changes] = field(default_factory=dict)
    _rounds: int = 0  # that were followed

    @property
    def is_any(self) -> bool:
        """Whether there is anything to be followed."""
        return bool(self.all) or self.uses is not None

    @property
    def all(self) -> list[Slot]:
        """Those that may change."""
        return [*self.containers, *self.names]

    def become(self, others: Places) -> None:
        """Other places are followed from now on."""
        self.containers, self.names = others.containers, others.names
        self.uses = others.uses or self.uses

    def forget(self) -> None:
        """Holds nothing of the program any more."""
        self.containers, self.names, self.uses = [], [], None
        self._changes.clear()

    def learn(self, changes: dict[Hashable, Changes]) -> None:
        """A round was followed: what happened to each place."""
        self._rounds += 1
        for slot in self.all:
            if slot.place in changes:
                known = self._changes.setdefault(slot.place, Changes())
                known.add(changes[slot.place])

    def grown(self) -> Filled | None:
        """The innermost container that has grown, if a line was seen to fill it."""
        filled = self._filled(self.containers)
        return next((found for found in filled if found[1].size_change > 0), None)

    def bound(self) -> Filled | None:
        """The innermost name that was bound anew."""
        return next(self._filled(self.names), None)

    def _filled(self, slots: list[Slot]) -> Iterator[Filled]:
        for slot in slots:
            change = self._changes.get(slot.place)
            if change is not None and change.line is not None:
                yield slot, change

    def supposed(self, is_one: bool) -> tuple[str, Line | None]:
        """The innermost name of which the source says that it is filled, and where.

        Containers that were followed and did not grow are not what is filled: some of
        their items are, each in its turn, by the line that gives it the attribute.

        Args:
            is_one: Whether one thing is replaced, so that a name is bound anew.
        """
        if self.containers and self._rounds >= _ROUNDS_ENOUGH:
            names = (slot.name for slot in self.names if isinstance(slot.key, str))
            name = next(names, "")
            return "", source.puts_into(name, is_attribute=True) if name else None
        binds = is_one or not self.containers
        name = ""
        for slot in self.all:
            if slot.name:
                name = slot.name
                line = source.puts_into(name, binds and not slot.is_container)
                if line is not None:
                    return name, line
        return name, None
