"""What iterations of a step leave that stays, but does not grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Settled:
    """Gradients and states that iterations leave: as many, however many there are.

    Where gradients are accumulated some iterations leave them, others states: in time
    an iteration begins with both.

    Attributes:
        gradients: The most bytes that an iteration left.
        states: The same.
        now: Both, as the last iteration left them.
        begun: As the last iteration began.
        iterations: How many have ended.
    """

    gradients: int = 0
    states: int = 0
    now: int = 0
    begun: int = 0
    iterations: int = 0

    def begin(self) -> None:
        """An iteration begins."""
        self.begun = self.now

    def end(self, gradients: int, states: int) -> int:
        """It has left so many bytes; gives their sum."""
        self.gradients = max(self.gradients, gradients)
        self.states = max(self.states, states)
        self.iterations += 1
        self.now = gradients + states
        return self.now

    @property
    def missing_bytes(self) -> int:
        """What the last iteration began without, though another one will have it."""
        most = self.gradients + self.states if self.iterations > 1 else 0
        return max(0, most - self.begun)
