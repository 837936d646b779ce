"""What one step showed of a device."""

from __future__ import annotations

from dataclasses import dataclass, field

from oomph.offload.range_max import RangeMax
from oomph.offload.select import Save


@dataclass
class Step:
    """What one step showed of a device."""

    first: int = 0  # sequence of the first tensor that it saved
    need_bytes: int = 0  # most bytes of blocks, on either side, before the optimizer
    device_need_bytes: int = 0  # of these, most but for what fell back to the host
    optimizer_bytes: int = 0  # most while it worked
    temporary_bytes: int = 0  # of these, what it had for itself, and gave back
    away_bytes: int = 0  # most that was away at one time
    sent_bytes: int = 0
    fetched_bytes: int = 0
    waited_ms: float = 0.0  # as far as it was known when the step ended
    host_bytes: int = 0  # most bytes of blocks on the host
    host_growth: int = 0  # by which they grew before the optimizer,
    fetch_growth: int = 0  # and while something was back ahead of need
    # What had been sent long before they grew, and others held: it took the room.
    held: set[Save] = field(default_factory=set)
    state_host_bytes: int = 0  # of the optimizers' state, on the host at its end
    born_bytes: int = 0  # that the optimizer made and kept, such as its state
    # By place, most bytes in use since the one before: when it was saved, and used.
    forward_needs: list[tuple[int, int]] = field(default_factory=list)
    backward_needs: list[tuple[int, int]] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    backwards: list[int] = field(default_factory=list)  # places at which one began
    # Of each forward with its backward: most bytes needed, and before which place that
    # was (None: in forward). What lies behind it had been used by then.
    peaks: list[tuple[int, int | None]] = field(default_factory=list)
    # Before what was saved at a place was used, without what had been fetched.
    profile: RangeMax = field(default_factory=RangeMax)

    @property
    def unreached_bytes(self) -> int:
        """Most bytes on the host that were neither sent there nor optimizers' state."""
        return max(self.host_bytes - self.state_host_bytes, 0)

    def used_host(self) -> bool:
        """Whether anything of the device's was on the host."""
        return self.sent_bytes > 0 or self.host_bytes > 0
