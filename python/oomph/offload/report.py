"""What the planner does on a device and what it costs, in words and as data."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from oomph import _C
from oomph.base.sizes import format_size
from oomph.offload import optimizers
from oomph.offload.blocks import Blocks
from oomph.offload.policy import DevicePlan
from oomph.steps import times


def metrics(device: DevicePlan | None) -> dict[str, float]:
    """What went over the link since the start; zeros without a plan."""
    link = device.link if device is not None else None
    return {
        "sent_bytes": link.out_bytes if link else 0,
        "fetched_bytes": link.back_bytes if link else 0,
        "waited_ms": link.waited_ms if link else 0.0,
    }


def describe(device: DevicePlan, blocks: Blocks | None) -> dict[str, Any]:
    """The plan of a device, as :func:`oomph.planner.explain` gives it.

    Args:
        device: Its plan.
        blocks: What runs again there, if anything was looked at.
    """
    last, known = device.last, times.of_device(device.index)
    used_bytes = _C.stats(device.index)["step_host_used_bytes"]
    used = f"; kernels used {format_size(used_bytes)} on host pages"
    values = {
        "missing_bytes": _missing_bytes(device, blocks),
        "offloaded_bytes": last.away_bytes,
        "unreached_bytes": last.unreached_bytes,
        "state_host_bytes": last.state_host_bytes,
        "step_host_used_bytes": used_bytes,
        "step_sent_bytes": last.sent_bytes,
        "step_sent_late_bytes": last.late_bytes,
        "step_fetched_bytes": last.fetched_bytes,
        "step_waited_ms": last.waited_ms,
        **metrics(device),
        "step_ms": known.last_ms,
        "step_ms_without_offload": known.last_without_ms,
        **_recomputed(blocks),
    }
    text = (
        f"GPU {device.index}: {_explain(device, blocks)}{used if used_bytes else ''}."
    )
    return {**values, "text": text}


def _missing_bytes(device: DevicePlan, blocks: Blocks | None) -> int:
    """What the last step needed beyond the device, with all that ran again kept."""
    return max(_need_bytes(device, blocks) - device.capacity, 0)


def _need_bytes(device: DevicePlan, blocks: Blocks | None) -> int:
    """What the last step would have needed with all that ran again kept."""
    freed_bytes = blocks.freed_bytes if blocks is not None else 0
    return max(device.last.need_bytes + freed_bytes, device.last.optimizer_bytes)


def _recomputed(blocks: Blocks | None) -> dict[str, Any]:
    """What runs again, as data."""
    plan = blocks.plan if blocks is not None else None
    return {
        "recomputed_calls": len(plan.recomputed) if plan else 0,
        "recomputed_bytes": blocks.freed_bytes if blocks is not None else 0,
        "recompute_ms": blocks.again_ms if blocks is not None else 0.0,
        "expected_step_ms": blocks.expected_ms if blocks is not None else 0.0,
        "left_alone": dict(blocks.left_alone) if blocks is not None else {},
    }


def _again(blocks: Blocks) -> str:
    """The calls that run again, and what that frees and takes; empty if none does."""
    if blocks.plan is None or not blocks.plan.recomputed:
        return ""
    names = Counter(call.name for call in blocks.chosen())
    calls = ", ".join(f"{count} x {name}" for name, count in names.most_common(3))
    more = "" if len(names) <= 3 else " and others"
    return (
        f"{calls}{more}, which frees {format_size(blocks.freed_bytes)} and takes about "
        f"{blocks.again_ms:.1f} ms"
    )


def _explain(device: DevicePlan, blocks: Blocks | None) -> str:
    last = device.last
    sent, state, rest = map(
        format_size, (last.away_bytes, last.state_host_bytes, last.unreached_bytes)
    )
    done = []
    if blocks is not None and (again := _again(blocks)):
        done.append(f"these calls run again in backward: {again}")
    if device.plan.target_bytes > 0 and device.sends:
        done.append(
            f"the first {sent} that forward saved went to the host and came back "
            "before backward used it"
        )
    if last.late_bytes > 0:
        done.append(
            f"{format_size(last.late_bytes)} went there only when memory had run out"
        )
    if optimizers.has_worked(device.index):
        done.append(
            "the optimizer worked piece by piece, so its temporary tensors are small"
        )
        if last.state_host_bytes > 0:
            done[-1] += (
                f"; {state} of its state is on the host and came to the device piece "
                "by piece"
            )
    if last.unreached_bytes > 0:  # by any plan
        done.append(
            f"{rest} that is not saved for backward, or that others hold, stayed on "
            "the host, where kernels use it at the speed of the link"
        )
    if not done:
        return "everything fits: nothing is offloaded"
    why = (
        "offload:always is set"
        if math.isinf(device.plan.target_bytes)
        else f"the last step needed {format_size(_need_bytes(device, blocks))}, and "
        f"the device has {format_size(device.capacity)}"
    )
    if blocks is not None and blocks.plan is not None and blocks.step_ms > 0:
        done.append(
            f"expected {blocks.expected_ms:.1f} ms a step, measured "
            f"{blocks.step_ms:.1f} ms"
        )
    if blocks is not None and blocks.left_alone:
        reasons = (f"{n} x {why}" for why, n in blocks.left_alone.most_common(3))
        done.append(f"not run again: {', '.join(reasons)}")
    if device.sends:
        done.append(_cost(device))
    return f"{why}: {'; '.join(done)}"


def _cost(device: DevicePlan) -> str:
    """What the copies of the last step cost, as expected and as measured."""
    last, known = device.last, times.of_device(device.index)
    speeds = _C.stats(device.index)
    text = "the link's speed is not known yet"
    if (out := speeds["link_to_host_bytes_per_s"]) > 0:
        back = speeds["link_to_device_bytes_per_s"] or math.nan
        text = (
            f"the link was busy for about {last.sent_bytes / out * 1e3:.1f} ms out and "
            f"{last.fetched_bytes / back * 1e3:.1f} ms back"
        )
    text += f", and the device waited {last.waited_ms:.1f} ms for it"
    if known.last_ms > 0:
        text += f" in a step of {known.last_ms:.1f} ms"
    if known.last_without_ms > 0:
        text += f" (the last without offload took {known.last_without_ms:.1f} ms)"
    return text


def rows(device: DevicePlan, blocks: Blocks | None) -> dict[str, str]:
    """What the table at exit says of it; empty if nothing was sent or ran again."""
    now = metrics(device)
    again = _again(blocks) if blocks is not None else ""
    if now["sent_bytes"] == 0 and not again:
        return {}
    known = times.of_device(device.index)
    without = (
        f", {known.last_without_ms:.1f} ms without offload"
        if known.last_without_ms > 0
        else ""
    )
    shown = {"the last step took": f"{known.last_ms:.1f} ms{without}"}
    if again:
        shown = {"runs again in backward": again, **shown}
    if now["sent_bytes"] > 0:
        fetched = format_size(int(now["fetched_bytes"]))
        waited = f"the device waited {now['waited_ms']:.1f} ms for it"
        shown = {
            "sent to the host ahead of need": format_size(int(now["sent_bytes"])),
            "fetched from there": f"{fetched}; {waited}",
            **shown,
        }
    return shown
