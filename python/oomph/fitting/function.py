"""``oomph.fit``: the command ``oomph fit`` as a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oomph.fitting import answers, calling, cards, progress
from oomph.fitting.answers import Fit
from oomph.fitting.measuring import Script
from oomph.fitting.process.extent import Extent


def fit(
    target: Sequence[str] | Callable[[], object],
    gpus: str | Sequence[str] = cards.WELL_KNOWN,
    *,
    host: str = cards.HOST,
    steps: int | None = None,
    seconds: float = 600.0,
    settings: str = "",
    brief: bool = False,
    within: float | None = None,
) -> Fit:
    """Runs a script or a function on simulated cards, and says on which it fits.

    Each run is a process of its own, so that this one may have imported PyTorch, and
    needs no GPU. docs/fit.md says how the question is answered.

    Args:
        target: A script and its arguments, as the command takes them (``-m`` and a
            module's name as well), or a function that other processes can import, such
            as ``functools.partial(train, batch=8)``.
        gpus: Sizes or names of cards, such as ``"12GiB,rtx4090"`` or a list of them.
        host: Memory of the host, of which oomph may use half.
        steps: The script is ended after so many steps of its optimizer, and with their
            epoch; None: after 6, or more if a look at some shows that a later one has
            the peak.
        seconds: It is ended after so many seconds as well.
        settings: Of oomph, besides offload.
        brief: Whether to leave out the smallest cards and what would help, which take
            longest to find.
        within: The time in seconds for the answer, which says what was not run; None:
            300, or four times as long as the first run, which is not ended.

    Returns:
        Whether it fits, card by card and way by way.

    Raises:
        ValueError: The question cannot be asked; the text says why.
        SimulationError: There is no such card, or PyTorch does not fit.
        ScriptError: The script fails where memory is not the reason; what it printed
            stands in the text.

    Example:
        >>> found = oomph.fit(["-m", "this"], gpus=["rtx4090"])
        >>> found.fits()
        True
        >>> found.on("rtx4090", "native").reserved_bytes
        0
    """
    if callable(target):
        target = calling.words_of(target)
    extent = Extent.of(steps)
    script = Script.of(target, settings=settings, seconds=seconds, extent=extent)
    names = gpus if isinstance(gpus, str) else ",".join(gpus)
    targets = cards.targets(names, host)
    return answers.find(
        script, targets, progress.silent(), brief=brief, within_s=within
    )
