"""What the planner does on a device and what it costs, in words and as data."""

from __future__ import annotations

import math
from typing import Any

from oomph import _C
from oomph.base.sizes import format_size
from oomph.offload import optimizers
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


def describe(device: DevicePlan) -> dict[str, Any]:
    """The plan of a device, as :func:`oomph.planner.explain` gives it."""
    last, known = device.last, times.of_device(device.index)
    used_bytes = _C.stats(device.index)["step_host_used_bytes"]
    used = f"; kernels used {format_size(used_bytes)} on host pages"
    told = {
        "missing_bytes": device.missing_bytes,
        "offloaded_bytes": last.away_bytes,
        "unreached_bytes": last.unreached_bytes,
        "state_host_bytes": last.state_host_bytes,
        "step_host_used_bytes": used_bytes,
        "step_sent_bytes": last.sent_bytes,
        "step_fetched_bytes": last.fetched_bytes,
        "step_waited_ms": last.waited_ms,
        **metrics(device),
        "step_ms": known.last_ms,
        "step_ms_without_offload": known.last_without_ms,
    }
    text = f"GPU {device.index}: {_explain(device)}{used if used_bytes else ''}."
    return {**told, "text": text}


def _explain(device: DevicePlan) -> str:
    last = device.last
    sent, state, rest = map(
        format_size, (last.away_bytes, last.state_host_bytes, last.unreached_bytes)
    )
    done = []
    if device.target_bytes > 0:
        done.append(
            f"the first {sent} that forward saved went to the host and came back "
            "before backward used it"
        )
    if optimizers.is_on(device.index):
        done.append(
            "the optimizer worked piece by piece, so its temporary tensors are small"
        )
        if last.state_host_bytes > 0:
            done[-1] += (
                f"; {state} of its state is on the host and came to the device in turn"
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
        if math.isinf(device.target_bytes)
        else "the last step needed "
        f"{format_size(max(last.need_bytes, last.optimizer_bytes))} where the device "
        f"has {format_size(device.capacity)}"
    )
    return f"{why}: {'; '.join([*done, _cost(device)])}"


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


def rows(device: DevicePlan) -> dict[str, str]:
    """What the table at exit says of it; empty if nothing was sent."""
    now = metrics(device)
    if now["sent_bytes"] == 0:
        return {}
    known = times.of_device(device.index)
    without = (
        f", {known.last_without_ms:.1f} ms without offload"
        if known.last_without_ms > 0
        else ""
    )
    return {
        "sent to the host ahead of need": format_size(int(now["sent_bytes"])),
        "fetched from there": f"{format_size(int(now['fetched_bytes']))}; the device "
        f"waited {now['waited_ms']:.1f} ms for it",
        "the last step took": f"{known.last_ms:.1f} ms{without}",
    }
