"""What a step came to when it ran again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

# Of what an iteration takes that it leaves behind, from which on iterations differ.
GROWS = 0.01


@dataclass(frozen=True)
class Outcome:
    """What a step came to when it ran again; bytes are beyond what was there.

    Attributes:
        peak_bytes: The most, in all iterations and those that follow.
        phase: "forward", "backward" or "optimizer": when that was.
        grows_bytes: What the second iteration left behind, more than the first; 0 below
            a hundredth of the most that it took itself, if it is no cache.
        raw: All of :meth:`oomph.replay.step.Replay.begin`.
        is_part: Whether time was up or an error came before all of it had run: it may
            come to more.
    """

    peak_bytes: int
    phase: str
    grows_bytes: int
    raw: dict[str, Any] = field(repr=False)
    is_part: bool = False
    _fewest: Outcome | None = None

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Outcome:
        """That of a replay."""
        ends = raw["ends"]
        grows = ends[1] - ends[0] if len(ends) > 1 else 0
        peak = max(*raw["peaks"], raw["peaks"][-1] + _later_bytes(raw))
        own = raw["peaks"][1] - ends[0] if grows else 0  # others' may be there, too
        grows = grows if grows >= GROWS * own else 0
        grows = max(grows, raw["cache"].get("turn_bytes", 0))
        return cls(peak, raw["phase"], grows, raw, raw["cut"] or bool(raw["error"]))

    @property
    def fewest(self) -> Outcome:
        """The same with as few rows as masks may choose; itself, if none decide."""
        return self._fewest or self

    def down_to(self, fewest: Outcome) -> Outcome:
        """With what it comes to where masks choose fewest rows."""
        return dataclasses.replace(self, _fewest=fewest)

    @property
    def last_bytes(self) -> int:
        """The most in the last iteration, had it begun with all that others leave."""
        return int(self.raw["peaks"][-1]) + self.later_bytes

    @property
    def later_bytes(self) -> int:
        """Of its peak, the gradients and states that only later iterations have."""
        return _later_bytes(self.raw)


def _later_bytes(raw: dict[str, Any]) -> int:
    return 0 if raw["phase"] == "optimizer" else int(raw["settled"])
