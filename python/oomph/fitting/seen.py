"""How much of a script the runs have seen, and what may come later, as sentences."""

from __future__ import annotations

from collections.abc import Sequence

from oomph.base.sizes import format_size
from oomph.fitting.process.look import differ
from oomph.fitting.process.record import BATCHES, Record

_SEEN = "the run also covers what follows their epoch"
_GROWS = "but not memory that grows over time"
_LATER = {
    "": "the run does not cover what comes later, such as an evaluation, nor memory "
    "that grows over time",
    "epoch": f"{_SEEN}, up to the next one, {_GROWS}",
    "end": f"{_SEEN}, up to the script's end, {_GROWS}",
    "error": f"{_SEEN}, up to an error (perhaps because tensors hold no values here), "
    f"{_GROWS}",
    "too long": "what follows their epoch takes too long, so the run does not cover "
    "it, nor memory that grows over time",
}


def of(roomy: Record, whole: Record | None, grows: bool, where: str = "") -> list[str]:
    """What the runs of a question have seen.

    Args:
        roomy: One without a limit that lasted as long as those on cards.
        whole: The script to its end, or as far as it came; None: that is not known.
        grows: Whether it has shown that the script needs more after its first steps.
        where: What else it had but no limit.
    """
    if whole is None:
        return [*ended([roomy]), *steps(roomy)]
    begin = _late(whole) if grows else _early(roomy)
    open_end = "" if whole.ended else " What comes after that is unknown."
    no_more = "" if grows else ", and needed no more"
    if whole.rises and whole.allocated_bytes > roomy.allocated_bytes:
        most = format_size(whole.allocated_bytes)
        no_more = f", and needed ever more: {most} by the last step"
    went = f"Without a limit{where} it {_went(whole)}{no_more}.{open_end}"
    is_all = whole.ended or grows
    differing = [_range(whole)] if differ(whole.steps_bytes) else []
    return [f"{begin} {went}", *(differing if is_all else steps(roomy))]


def _early(roomy: Record) -> str:
    """After how many steps the runs ended that answer."""
    has_epoch = roomy.later in ("epoch", "end", "error")
    follows = ", and what follows their epoch" if has_epoch else ""
    return f"The table is for {roomy.steps} steps of the script's optimizers{follows}."


def _late(whole: Record) -> str:
    """When the script needs most."""
    size = format_size(whole.allocated_bytes)
    if not whole.enough:
        return (
            f"The script needs most after its last step ({size}), and all runs had it."
        )
    return (
        f"The script needs most by step {whole.enough} ({size}), and all runs lasted "
        "up to that."
    )


def _went(whole: Record) -> str:
    """How far the script came."""
    count = len(whole.steps_bytes)
    if whole.ended:
        return f"also ran to its end ({count} steps)"
    if whole.later == "file":
        return (
            f"also ran for {count} steps, up to where it would change a file that was "
            f"there before ({whole.kept_file})"
        )
    if whole.failed:
        return (
            f"also ran for {count} steps, up to an error (perhaps because tensors hold "
            "no values here)"
        )
    return f"also ran for {count} steps, for as long as the answers took"


def _range(run: Record) -> str:
    """What steps need that differ, but for the first, which makes what others have."""
    later = run.steps_bytes[1:]
    least, most = format_size(min(later)), format_size(max(later))
    return f"Its steps differ: after the first, they need {least} to {most}."


def ended(runs: Sequence[Record]) -> list[str]:
    """After how many steps the script was ended, and what was seen then."""
    ends = {
        run.steps: run.later
        for run in runs
        if run.ending == "steps" and not run.kept_file
    }
    cut = (
        f" Loops over data after that epoch were stopped after {BATCHES} batches."
        if any(run.is_cut for run in runs)
        else ""
    )
    return [
        f"The script was stopped after {count} steps of its optimizers (--steps): "
        f"{_LATER[later]}.{cut}"
        for count, later in ends.items()
    ] + [
        f"The script was stopped after {run.steps} steps of its optimizers, before it "
        f"would change {run.kept_file}, which was there before: the run does not cover "
        "what comes after. A copy of the script in an empty folder may run on."
        for run in runs[-1:]
        if run.kept_file
    ]


def steps(roomy: Record) -> list[str]:
    """What each step needs, if it differs, and what is known of those to come."""
    begin = f"{_range(roomy)} " if differ(roomy.steps_bytes) else ""
    if roomy.ended and roomy.steps_bytes:
        is_after = roomy.until > 0 and not roomy.enough
        after = " It needs most after its last step." if is_after else ""
        count = len(roomy.steps_bytes)
        return [f"{begin}The script ran to its end ({count} steps).{after}"]
    if not begin:
        return []
    if roomy.batches_known:
        return [f"{begin}{_ahead(roomy)}"]
    if 2 * roomy.enough > len(roomy.steps_bytes):
        return [
            f"{begin}Step {roomy.enough} of the {len(roomy.steps_bytes)} that ran "
            "needs most, so later ones may need even more: --steps runs more of them."
        ]
    return [f"{begin}Others may need more: --steps runs more of them."]


def _ahead(roomy: Record) -> str:
    """What is known of batches that were to come, and which of them came first."""
    left, known = roomy.batches_left, roomy.batches_known
    those = "all" if known == left else str(known)
    also = (
        f" {roomy.batches_left_out} more are larger than those before them, but not "
        "among the largest; the run left them out, so PyTorch's allocator may fragment "
        "more."
        if roomy.batches_left_out
        else ""
    )
    rest = (
        ""
        if known == left
        else " Batches whose sizes are not known may need more: --steps runs them."
    )
    count = len(roomy.ahead)
    largest = f"{count} largest" if count > 1 else "largest"
    ran = (
        f"The {largest} ran next; a batch no larger in any size than one that ran "
        "needs no more."
        if count
        else "None is larger than those that ran."
    )
    return (
        f"After step {roomy.ahead_step} the sizes of {those} of the {left} batches "
        f"still to come in the epoch were looked at. {ran}{also}{rest}"
    )
