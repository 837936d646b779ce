"""One error as its text gives it."""

from __future__ import annotations

from dataclasses import dataclass, field

from oomph.doctor.amounts import Amount


@dataclass
class Found:
    """One error as the text gives it, without conclusions.

    Attributes:
        form: The key of :data:`oomph.doctor.parse.FORMS`.
        start: Where it starts in the squeezed text.
        end: Where it ends.
        backend: ``CUDA``, or what is said in its place, such as ``HIP``.
        device: The index of the device; None: not said.
        amounts: By name: ``requested`` (rounded up by the allocator), ``total``,
            ``free``, ``allowed`` (by a memory fraction), ``allocated`` (in tensors),
            ``reserved`` (what PyTorch has from the driver), ``unallocated`` (reserved,
            but in no tensor), ``this_process``, ``private`` (free blocks of private
            pools, which count as allocated), ``host`` (of what is reserved, by oomph),
            ``missing`` (as oomph counts it), ``other`` (of this
            process, but not PyTorch's), ``resident`` (in host memory), ``peak``.
            None: the text says that it is not known.
        processes: Amounts of processes that the text names, by their id.
        flags: What else it says, such as ``limit``.
        detail: A name that distinguishes errors of this form, such as a function.
        facts: What else the text says, by its name, such as ``process``.
    """

    form: str
    start: int
    end: int
    backend: str = "CUDA"
    device: int | None = None
    amounts: dict[str, Amount | None] = field(default_factory=dict)
    processes: dict[int, Amount | None] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    detail: str = ""
    facts: dict[str, str] = field(default_factory=dict)

    def amount(self, name: str) -> Amount | None:
        """An amount that the text gives; None: it does not."""
        return self.amounts.get(name)
