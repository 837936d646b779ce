"""What oomph does otherwise than PyTorch's allocator on purpose, by PyTorch's tests.

docs/pytorch_tests.md shows both tables; test_differences.py holds them together.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    """One line of the table."""

    what: str
    why: str


DIFFERENCES: dict[str, Difference] = {
    "test_allocator_backend": Difference(
        "the backend is oomph, whatever PYTORCH_ALLOC_CONF asks for",
        "a process has one allocator, and oomph was asked for by name",
    ),
    "test_record_stream": Difference(
        "a block that another stream has used serves again within eight allocations, "
        "or when nothing else fits, not at the next one",
        "asking the driver at each allocation costs more than an allocation does",
    ),
}
