"""What one run of a script on one simulated card has shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

CHILD = ".child"  # what the names of the records of forks end with
USED = "used"  # a file of a run that has come to use a GPU
SO_FAR = ".sofar"  # and of one that is written before what follows the steps
_LAST = 0.1  # of the steps
BATCHES = 32  # that a loop over data may have which begins after the steps
Ending = Literal["steps", "script", "oom", "error", "time", "late"]
Later = Literal["", "epoch", "end", "error", "too long", "file"]


@dataclass(frozen=True)
class Record:
    """A run of a script. Bytes are those of the device that needed most.

    Attributes:
        ending: "steps": as many as were asked for were seen; "script": it ended by
            itself; "oom": GPU memory ran out; "error": it failed otherwise; "time": it
            was ended since it took too long; "late": it was not made, as the time for
            the whole question was up.
        exit_code: Of the script, 0 where it was ended after its steps.
        steps: How many ended.
        devices: How many devices it used.
        processes: How many processes used them, of those that the script started and
            its own; the numbers are of the one that needed most.
        unseen: How many processes used them that left no record: of these nothing is
            known.
        allocated_bytes: Peak of what the script held.
        reserved_bytes: Peak of what the allocator had of the device.
        other_bytes: What else is in use there: CUDA's context.
        host_bytes: Peak of what oomph had in host memory.
        trace: Counts and sums of all that it asked for, which are the same only if it
            asked for the same.
        failures: Out-of-memory errors, those that the script caught as well.
        steps_bytes: Of each step the most bytes of blocks in use at a time; empty: not
            known.
        enough: The step that had the peak, of those that were looked at; 0: not known.
        until: The step with which other runs are to end, as it saw enough; 0: not
            known.
        ahead: Indices of batches of the epoch that came first, as they are larger than
            those before them.
        ahead_more: Indices of these and of other larger ones, which were left out.
        ahead_step: After which step; 0: nobody looked.
        batches_left: How many batches the epoch had still to come then; 0: not known.
        batches_known: Of how many of them the sizes were looked at.
        batches_left_out: How many of these are larger, too, and did not come first.
        later: What was seen after the steps: "": nothing; "epoch": what comes up to the
            next epoch; "end": all up to the script's end; "error": what comes up to an
            error, as it may want values; "too long": nothing, as it took too long;
            "file": what comes before a file of an earlier run would be changed.
        is_cut: Whether a loop over data that came later was ended early.
        guesses: How often an operator was given a guess of how many elements it finds.
        unwritten_bytes: Of weights on the CPU whose values were left out.
        without_weights: Names, folders or addresses of weights that were not here.
        used_gpu: Whether it came to use a GPU.
        hindrance: What the script had when it first used a GPU, and no fork would have;
            empty: forks of it can go on from there, or it was not asked.
        kept_file: Before it would have changed this file of before, it was ended; "":
            it was not.
        seconds: How long it took, on this machine, up to that step.
        step_ms: Time of a step on the virtual clock, the median but for the first; 0:
            not known.
        asks_size: Whether the script asked how much memory is free, and may do
            otherwise on another card.
        error: What the last out-of-memory error of oomph said; "": there was none.
        diagnosis: The same as data (:class:`oomph.diagnosis.diagnosis.Diagnosis`).
        output: The end of what the script printed.
    """

    ending: Ending
    exit_code: int
    steps: int = 0
    devices: int = 0
    processes: int = 1
    unseen: int = 0
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    other_bytes: int = 0
    host_bytes: int = 0
    trace: Sequence[int] = ()
    failures: int = 0
    steps_bytes: Sequence[int] = ()
    enough: int = 0
    until: int = 0
    ahead: Sequence[Any] = ()
    ahead_more: Sequence[Any] = ()
    ahead_step: int = 0
    batches_left: int = 0
    batches_known: int = 0
    batches_left_out: int = 0
    later: Later = ""
    is_cut: bool = False
    guesses: int = 0
    unwritten_bytes: int = 0
    without_weights: Sequence[str] = ()
    used_gpu: bool = True
    hindrance: str = ""
    kept_file: str = ""
    seconds: float = 0.0
    step_ms: float = 0.0
    asks_size: bool = False
    error: str = ""
    diagnosis: dict[str, Any] | None = None
    output: str = ""

    @property
    def came_through(self) -> bool:
        """Whether it ran to its end, or to that of its steps."""
        return self.ending == "steps" or self.ended

    @property
    def ended(self) -> bool:
        """Whether it ran to its end."""
        return self.ending == "script" and self.exit_code == 0

    @property
    def rises(self) -> bool:
        """Whether its peak came with the last of its steps, and it had not ended."""
        count = len(self.steps_bytes)
        return not self.ended and self.enough > (1 - _LAST) * count

    @property
    def failed(self) -> bool:
        """Whether it failed, and not for want of memory or time."""
        return self.ending in ("error", "script") and not self.came_through

    @property
    def needed_bytes(self) -> int:
        """Of a device, all that was in use at the peak, as nvidia-smi shows it."""
        return self.reserved_bytes + self.other_bytes

    def with_children(self, children: Sequence[Record]) -> Record:
        """The record of a script that has started processes, of which these are."""
        used = [each for each in (self, *children) if each.allocated_bytes > 0]
        if not used or not children:
            return self
        ending = self.ending
        if self.exit_code != 0 and any(child.ending == "oom" for child in children):
            ending = "oom"
        most = max(used, key=lambda each: each.needed_bytes)
        if self.came_through and most.came_through:  # the steps may be a child's
            ending = most.ending
        return dataclasses.replace(
            most,
            ending=ending,
            exit_code=self.exit_code,
            hindrance=self.hindrance,
            failures=sum(each.failures for each in used),
            processes=len(used),
        )

    def as_dict(self) -> dict[str, Any]:
        """Gives all attributes in types that JSON has."""
        return dataclasses.asdict(self)
