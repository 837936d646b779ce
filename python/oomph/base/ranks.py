"""Which rank of a job this process is, as its launcher says."""

from __future__ import annotations

import os
import socket

# Where launchers say the rank, how many there are, and of how many machines or nodes.
_VARIABLES = (
    ("RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE"),  # torchrun and what is like it
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_orte_num_nodes"),
    ("PMI_RANK", "PMI_SIZE", ""),  # Intel MPI, MPICH
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"),  # srun
)


def rank() -> int | None:
    """The rank of this process among several; None: it is alone, as far as is known."""
    found = _found()
    return None if found is None else found[0]


def label() -> str:
    """The rank in words, with its machine if there are several; "" if it is alone."""
    found = _found()
    if found is None:
        return ""
    number, machines = found
    return f"rank {number}" + (f" on {socket.gethostname()}" if machines > 1 else "")


def _found() -> tuple[int, int] | None:
    for own, size, machines in _VARIABLES:
        if _number(size, 1) > 1 and own in os.environ:
            return _number(own, 0), _number(machines, 1)
    return None


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise
