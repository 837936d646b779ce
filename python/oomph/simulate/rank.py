"""A rank of a world whose other ranks do not exist, as a launcher would start it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

VARIABLE = "OOMPH_SIMULATE_WORLD"  # how many ranks there are; libnccl reads it, too
DEVICES_MAX = 16  # of a simulated machine
LOCAL_SIZE = 8  # ranks on a machine, if nothing is said


@dataclass(frozen=True)
class Rank:
    """A rank of a world.

    Attributes:
        rank: From 0.
        size: Of the world.
        local_size: Ranks on each machine, the last one perhaps with fewer.
    """

    rank: int
    size: int
    local_size: int

    def __post_init__(self) -> None:
        """Raises ValueError for what no launcher would start."""
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise ValueError(
                f"rank {self.rank} of a world of {self.size}: ranks are from 0 to "
                f"{max(0, self.size - 1)}"
            )
        if not 1 <= self.local_size <= DEVICES_MAX:
            raise ValueError(
                f"{self.local_size} ranks on a machine: a simulated one has 1 to "
                f"{DEVICES_MAX} devices"
            )

    @property
    def devices(self) -> int:
        """What a machine of this world needs."""
        return min(self.local_size, self.size)

    def variables(self) -> dict[str, str]:
        """What torchrun would set for the process, and that the others do not exist."""
        machine, local_rank = divmod(self.rank, self.local_size)
        here = min(self.local_size, self.size - machine * self.local_size)
        variables = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": here,
            "GROUP_RANK": machine,
            "GROUP_WORLD_SIZE": -(-self.size // self.local_size),
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 29500,  # nobody listens there
            VARIABLE: self.size,
        }
        return {name: str(value) for name, value in variables.items()}

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Rank:
        """The rank of such variables, as :meth:`variables` has them."""
        rank, machine = int(variables["RANK"]), int(variables["GROUP_RANK"])
        before = rank - int(variables["LOCAL_RANK"])  # ranks of machines before it
        here = int(variables["LOCAL_WORLD_SIZE"])
        local_size = before // machine if machine else here
        return cls(rank, int(variables["WORLD_SIZE"]), local_size)

    def other(self, rank: int) -> Rank:
        """Another rank of this world."""
        return replace(self, rank=rank)


def with_devices(card: str, count: int) -> str:
    """The description of a card, with as many devices as a machine has ranks."""
    return card if "devices=" in card else f"{card},devices={count}"
