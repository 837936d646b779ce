"""What is known of a script, as text and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from oomph.base.sizes import format_size
from oomph.base.tables import columns, sized
from oomph.diagnosis.wording import OFFLOAD, PHASES
from oomph.fitting import reasons, seen
from oomph.fitting.answer import Answer
from oomph.fitting.cards import Target
from oomph.fitting.measuring import Way
from oomph.fitting.process.record import Record
from oomph.fitting.varying import Largest, Varied

if TYPE_CHECKING:
    from oomph.fitting.answers import Fit

_ROWS = 5  # of holders, and of remedies
_OfCard = TypeVar("_OfCard", Answer, Largest)


def text(fit: Fit) -> str:
    """A table of cards, what holds the memory at the peak, and what would help."""
    parts = _table(fit), [*_peak(fit.peak), *_smaller(fit)], _remarks(fit)
    return "\n\n".join("\n".join(part) for part in parts if part)


def text_of_replay(fit: Fit) -> str:
    """A table of cards, and how each way fared without a limit."""
    lines = []
    for way, record in _roomy(fit).items():
        unused = record.reserved_bytes - record.allocated_bytes
        lines.append(
            f"{way.value}: {format_size(record.allocated_bytes)} allocated, "
            f"{format_size(record.reserved_bytes)} reserved "
            f"({unused / max(1, record.reserved_bytes):.1%} of it fragments and rest); "
            f"{record.output.splitlines()[-1]}"
        )
    return "\n".join([*_table(fit, False), "", *lines])


def _roomy(fit: Fit) -> dict[Way, Record]:
    """The runs without a limit."""
    return {
        answer.way: answer.roomy
        for answer in fit.answers
        if answer.card == fit.answers[-1].card and answer.way is not Way.RESCUE
        if answer.is_known or answer.way is Way.OOMPH
    }


def text_of_largest(varied: Varied) -> str:
    """A table of the largest values with which a script fits each card."""
    name, found = varied.name, varied.largest
    rows = [["card", "memory", *(way.value for way in Way)]]
    for card, largest in _by_card(found):
        cells = [_value(largest[way]) for way in Way]
        rows.append([card.name, format_size(card.memory_bytes), *cells])
    lines = [f"The largest {name} that fits:", *columns(rows), ""]
    runs = [each.roomy for each in found if each.roomy is not None]
    if varied.whole is None or not runs:
        lines += [*seen.ended(runs), *_steps_of_largest(name, found)]
    else:
        smallest = f" and with the smallest {name}"
        lines += seen.of(runs[-1], varied.whole, varied.grows, smallest)
    lines += [*_forked(runs), *_asks(runs), *reasons.caught(found)]
    lines += reasons.late([e for e in map(_open_range, found) if e])
    return "\n".join(lines).strip()


def _steps_of_largest(name: str, found: Sequence[Largest]) -> list[str]:
    """What the steps need of the last card's largest value."""
    values = [(each.value, each.roomy) for each in found if each.roomy is not None]
    return [
        f"With {name}={value}: {line}"
        for value, roomy in values[-1:]
        for line in seen.steps(roomy)
    ]


def _forked(runs: Sequence[Record]) -> list[str]:
    """How many processes used a GPU, where the script has started some."""
    count = max((run.processes for run in runs), default=1)
    unseen = max((run.unseen for run in runs), default=0)
    lines = []
    if count > 1:
        lines.append(
            f"{count} processes of the script used a GPU, and the table shows the one "
            "that needs most. Those that run at the same time need more together."
        )
    if unseen > 0:
        lines.append(
            "Other processes that the script started used a GPU, too, and left no "
            f"record, as if they were killed ({unseen}). What they need comes on top."
        )
    return lines


def _asks(runs: Sequence[Record]) -> list[str]:
    if not any(run.asks_size for run in runs):
        return []
    return [
        "The script asks how much memory is free and may behave differently on each "
        "card, so it may need more or less there than without a limit."
    ]


def _value(largest: Largest) -> str:
    if not largest.is_known:
        least = largest.value or "none"
        return "not run" if largest.most is None else f"{least} to {largest.most}"
    if largest.value is None:
        return "none"
    return f"{largest.value} or more" if largest.is_last else largest.value


def _open_range(largest: Largest) -> str:
    """What is not known of a card; "": nothing."""
    if largest.is_known:
        return ""
    return f"{largest.card.name} ({largest.way.value})"


def data_of_largest(varied: Varied) -> dict[str, Any]:
    """The same in types that JSON has; None: it fits with no value."""
    values = {
        card.name: {way.name.lower(): each.value for way, each in largest.items()}
        for card, largest in _by_card(varied.largest)
    }
    return {
        "name": varied.name,
        "largest": values,
        "not_run": [each for each in map(_open_range, varied.largest) if each],
        "whole": varied.whole and varied.whole.as_dict(),
    }


def _table(fit: Fit, has_times: bool = True) -> list[str]:
    times = ["ms a step", "without limit"] if has_times else []
    rows = [["card", "memory", *(way.value for way in Way), *times]]
    for card, answers in _by_card(fit.answers):
        rows.append(
            [
                card.name,
                format_size(card.memory_bytes),
                *(_cell(answers[way]) for way in Way),
                *(_times(answers[Way.RESCUE]) if has_times else []),
            ]
        )
    if fit.smallest:
        sizes = [_smallest(fit, way) for way in Way]
        rows.append(["smallest", "", *sizes, *("" for _ in times)])
    return columns(rows)


def _smallest(fit: Fit, way: Way) -> str:
    size, is_unsure = fit.smallest.get(way), way in fit.unsure
    if size is None:
        return "not run" if is_unsure else "-"
    return f"{format_size(size)}{' or less' if is_unsure else ''}"


def _by_card(found: Sequence[_OfCard]) -> list[tuple[Target, dict[Way, _OfCard]]]:
    cards = dict.fromkeys(each.card for each in found)
    return [(card, {e.way: e for e in found if e.card == card}) for card in cards]


def verdict(answer: Answer) -> str:
    """Whether the script fits a card in one way, as a sentence."""
    if not answer.is_known:
        return f"there is no time left for {answer.card.name} ({answer.way.value})"
    if answer.failed:
        return f"on {answer.card.name} the script fails ({answer.way.value})"
    if answer.gave_up:
        return f"{answer.card.name} takes too long ({answer.way.value})"
    if not answer.fits:
        return f"{answer.card.name} is too small ({answer.way.value})"
    host = answer.record.host_bytes
    on_host = f", {format_size(host)} on the host" if host else ""
    return f"{answer.card.name} is large enough ({answer.way.value}{on_host})"


def _cell(answer: Answer) -> str:
    if not answer.is_known:
        return "not run"
    if answer.failed:
        return "fails"
    if not answer.fits:
        return "too slow" if answer.gave_up else "no"
    host = answer.record.host_bytes
    return f"fits, {format_size(host)} on the host" if host else "fits"


def _times(rescue: Answer) -> list[str]:
    ms, least = rescue.step_ms, rescue.roomy.step_ms
    if ms is None or not least:
        return ["-", "-"]
    return [f"{ms:.1f}", f"{least:.1f} ({ms / least:.2f} x)"]


def _peak(peak: Record | None) -> list[str]:
    found = peak and peak.diagnosis
    if not found:
        return []
    request = found["request"]
    when = PHASES.get(request["phase"], "")
    rows = [
        sized(total["size_bytes"], total["name"])
        for total in sorted(found["categories"], key=lambda t: -t["size_bytes"])[:_ROWS]
    ]
    in_phase = f" in {when}" if when else ""
    where = f" at {request['where']}" if request["where"] else ""
    asked = f", with a request for {format_size(request['size_bytes'])}"
    held = " Just before it, GPU memory is held by:" if rows else ""
    return [f"The peak comes{in_phase}{where}{asked}.{held}", *rows]


def _smaller(fit: Fit) -> list[str]:
    if fit.smaller is None or fit.smaller_card is None or not fit.smaller.diagnosis:
        return []
    rows = []
    found = fit.smaller.diagnosis["remedies"]
    without = [each for each in found if each["action"] != OFFLOAD]  # the table has it
    for remedy in without[:_ROWS]:
        mark = {True: "enough", False: "not enough alone", None: "not known"}
        text = f"{remedy['action']} ({mark[remedy['enough']]}); cost: {remedy['cost']}"
        rows.append(sized(remedy["saves_bytes"], text))
    where = f"On {fit.smaller_card.name} without offload"
    if not rows:
        return [f"{where}, oomph knows nothing that would save memory."]
    return [f"{where}, these would save memory:", *rows]


def _remarks(fit: Fit) -> list[str]:
    found = [
        f"Without a limit: {format_size(record.allocated_bytes)} allocated, "
        f"{format_size(record.reserved_bytes)} reserved, "
        f"{format_size(record.needed_bytes)} in nvidia-smi ({way.value})."
        for way, record in _roomy(fit).items()
    ]
    roomy = fit.answers[0].roomy
    found += [*seen.of(_roomy(fit)[Way.OOMPH], fit.whole, fit.grows)]
    found += [*_forked([roomy]), *_asks([roomy]), *_guessed(fit)]
    found += [*reasons.caught(fit.answers), *reasons.failed(fit.answers)]
    found += [*reasons.gave_up(fit.answers), *reasons.late(fit.not_run)]
    if fit.smallest and len({each.card.roomy for each in fit.answers}) > 1:
        found.append(
            f"The smallest cards are otherwise like {fit.answers[-1].card.name}: on "
            "another kind CUDA and its libraries take more or less."
        )
    if roomy.without_weights:
        names = ", ".join(dict.fromkeys(roomy.without_weights))
        found.append(
            f"The weights of {names} are not on this machine and were not downloaded: "
            "the model was made without them, which takes as much memory."
        )
    if roomy.hindrance:
        found.append(
            "Each run started the script from its beginning, which takes longer: when "
            f"it first used a GPU it had {roomy.hindrance}, which a fork would not "
            "have."
        )
    if roomy.step_ms and not any(each.card.has_rates for each in fit.answers):
        found.append(
            "To see how long a step takes, name a card, such as --gpu rtx4090."
        )
    if not roomy.allocated_bytes:
        found.append("The script allocated nothing on a GPU.")
    if roomy.steps == 0:
        found.append(
            "The script ran to its end without a step of an optimizer; what a longer "
            "run would need is unknown."
        )
    return found


def _guessed(fit: Fit) -> list[str]:
    """Between what it is where data say how many elements match."""
    if not fit.guessed:
        return []
    count = _roomy(fit)[Way.OOMPH].guesses
    most = fit.guessed[max(fit.guessed)]
    small = [
        answer.card.name
        for answer in fit.answers
        if answer.way is Way.OOMPH and answer.fits and most.came_through
        if most.needed_bytes > answer.card.memory_bytes
    ]
    then = f" If all match, {', '.join(small)} is too small." if small else ""
    peaks = [f"{_of_guess(run)} if {s:.0%} do" for s, run in fit.guessed.items()]
    return [
        "How many elements match a mask or nonzero() depends on data that are not "
        f"there: this run assumed half, or what matches= says ({count} times). "
        f"Allocated at the peak: {', '.join(peaks)}.{then}"
    ]


def _of_guess(run: Record) -> str:
    if run.came_through:
        return format_size(run.allocated_bytes)
    if run.ending == "time":
        return "the script takes too long"
    said = f" ({run.output.splitlines()[-1]})" if run.output else ""
    return f"the script fails{said}"


def data(fit: Fit) -> dict[str, Any]:
    """All of it in types that JSON has."""
    return {
        "cards": [
            {
                "card": card.name,
                "memory_bytes": card.memory_bytes,
                "ways": {
                    way.name.lower(): {
                        "fits": answer.fits if answer.is_known else None,
                        "was_run": answer.was_run,
                        "run": answer.record.as_dict(),
                    }
                    for way, answer in answers.items()
                },
            }
            for card, answers in _by_card(fit.answers)
        ],
        "not_run": list(fit.not_run),
        "smallest_bytes": {w.name.lower(): size for w, size in fit.smallest.items()},
        "guessed_bytes": {
            f"{share:g}": run.allocated_bytes if run.came_through else None
            for share, run in fit.guessed.items()
        },
        "peak": fit.peak and fit.peak.diagnosis,
        "smaller": fit.smaller and fit.smaller.diagnosis,
        "whole": fit.whole and fit.whole.as_dict(),
    }
