"""Remedies whose effect is reckoned from one run of the step, without another.

What they make smaller is known piece by piece (``replay.metrics``, ``replay.regions``):
caches, losses, states of optimizers, and what is large between small tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from oomph.base.sizes import format_size
from oomph.diagnosis.forecast import Forecast, Span
from oomph.diagnosis.remedy import (
    EIGHT_BITS,
    FACTORED,
    HOST_TABLES,
    ROW_WISE,
    SPARSE,
    Context,
    Remedy,
    fused,
)
from oomph.memory import host, sites

ALIKE = 0.01  # of the peak: what saves so much more saves no more to speak of


def smaller(now: Context, forecast: Forecast) -> Iterator[Remedy]:
    """All that help."""
    yield from _sampled_graph(forecast)
    yield from _last_logits(forecast)
    yield from _smaller_cache(forecast)
    yield from _chunked_loss(forecast)
    yield from _in_rows(forecast)
    yield from _smaller_state(now, forecast)
    yield from _growing(now, forecast)


def _said(forecast: Forecast, action: str, cost: str, peak: Span) -> Remedy:
    """A remedy that leaves the step such a peak."""
    saves = forecast.peak_bytes - peak.most
    return Remedy(action, saves, cost, forecast.fits(peak))


def _sampled_graph(forecast: Forecast) -> Iterator[Remedy]:
    """As few parts of a graph as are enough, where all nodes send messages at once."""
    graph = forecast.outcome.raw["messages"]
    fewest = dict(forecast.outcome.fewest.raw["messages"].get("parts", ()))
    for parts, peak in graph.get("parts", ()):
        remedy = _said(
            forecast,
            f"neighbour sampling: {parts} parts of the {graph['nodes']} nodes and "
            f"{graph['edges']} edges, one at a time (NeighborLoader, ClusterLoader)",
            "gradients come from samples; more steps per epoch",
            Span(fewest.get(parts, 0), peak).plus(forecast.base_bytes),
        )
        if remedy.enough is not False or parts == graph["parts"][-1][0]:
            yield remedy
            return


def _smaller_cache(forecast: Forecast) -> Iterator[Remedy]:
    """Keys and values of earlier tokens: elsewhere, coarser, fewer, or held once."""
    if not forecast.outcome.raw["cache"]:
        return
    tokens = forecast.outcome.raw["cache"]["length"]
    for name, action, cost in (
        (
            "offloaded",
            "the cache of keys and values in CPU memory, but for two layers "
            "(transformers: cache_implementation='offloaded')",
            "all of it is copied for each token",
        ),
        (
            "quantized",
            "keys and values of 4 bits (transformers: "
            "cache_implementation='quantized')",
            "less precise, and converted back for each token",
        ),
        (
            "windowed",
            f"a sliding window of the last {tokens // 2} of {tokens} tokens",
            "earlier tokens are ignored; only for models trained with a sliding window",
        ),
        (
            "dropped",
            "freeing a layer's old keys and values once the new ones exist",
            "nothing",
        ),
    ):
        yield _said(forecast, action, cost, forecast.peak_without(name))


def _last_logits(forecast: Forecast) -> Iterator[Remedy]:
    """Of a prompt only the last token's words are asked for."""
    without = forecast.outcome.raw["without"]
    if without["tokens"]:
        yield _said(
            forecast,
            f"logits of only the last of {without['tokens']} tokens (transformers: "
            "logits_to_keep=1)",
            "nothing, if you only need the next token",
            forecast.peak_without("last"),
        )


def _chunked_loss(forecast: Forecast) -> Iterator[Remedy]:
    """Logits and what is made of them, one chunk of rows at a time."""
    from oomph.replay.metrics import CHUNKS

    shape = forecast.outcome.raw["without"]["logits"]
    if not shape:
        return
    rows = math.prod(shape[:-1])
    yield _said(
        forecast,
        f"the head and cross-entropy in {CHUNKS} chunks, {-(-rows // CHUNKS)} of the "
        f"{rows} rows of logits at a time",
        "torch.utils.checkpoint runs the head twice",
        forecast.peak_without("chunked"),
    )


def _in_rows(forecast: Forecast) -> Iterator[Remedy]:
    """What is large between small tensors, some rows at a time; attention fused."""
    raw = forecast.outcome.raw
    beside = forecast.base_bytes + forecast.outcome.later_bytes
    is_known = forecast.outcome.fewest is forecast.outcome

    def peak_of(size_bytes: int) -> Span:
        return Span(size_bytes if is_known else 0, size_bytes).plus(beside)

    for found in raw["regions"]:
        place = sites.place(*found["place"])
        if found["fused"]:
            action = (
                "torch.nn.functional.scaled_dot_product_attention in place of product, "
                f"softmax and product at {place} (transformers: "
                "attn_implementation='sdpa')"
            )
            cost = "nothing, if you do not need the weights; it is faster"
            yield _said(forecast, action, cost, peak_of(found["fused"]))
            continue
        known = {count: peak_of(peak) for count, peak in found["parts"]}
        if not known:
            continue
        best = min(peak.most for peak in known.values())
        alike = best + ALIKE * forecast.peak_bytes
        fitting = [n for n, peak in known.items() if forecast.fits(peak)]
        count = min(fitting or [n for n, p in known.items() if p.most <= alike])
        rows, shape = found["rows"], found["shape"]
        cost = "a loop over them, whose results are joined"
        if raw["backwards"]:
            cost += "; torch.utils.checkpoint around each computes it twice"
        yield _said(
            forecast,
            f"the {found['dtype']} {shape} of {place} in {count} chunks, "
            f"{-(-rows // count)} of the {rows} rows at a time",
            cost,
            known[count],
        )


def _smaller_state(now: Context, forecast: Forecast) -> Iterator[Remedy]:
    """Fused optimizers make nothing beside their states, which may be smaller, too."""
    unfused = now.breakdown.program.unfused
    if unfused:
        yield _said(forecast, *fused(unfused), forecast.peak_without("fused"))
    yield _said(forecast, *EIGHT_BITS, forecast.peak_without("8 bits"))
    yield _said(forecast, *FACTORED, forecast.peak_without("factored"))
    if now.trains_tables:
        yield _said(forecast, *HOST_TABLES, forecast.peak_without("tables"))
        yield _said(forecast, *ROW_WISE, forecast.peak_without("row-wise"))
        yield _said(forecast, *SPARSE, forecast.peak_without("sparse"))


def _growing(now: Context, forecast: Forecast) -> Iterator[Remedy]:
    """What each iteration of the loop leaves behind, and the next ones add to.

    Without it each iteration is as the first. What one leaves counts as there still, as
    some of it may be for the next.
    """
    grows, raw = forecast.outcome.grows_bytes, forecast.outcome.raw
    is_training = now.saves_for_backward and raw["backwards"]
    if grows and not raw["cache"] and not is_training:
        to_cpu = ".detach().cpu()" if now.saves_for_backward else ".cpu()"
        collected = forecast.collected_bytes
        alone = forecast.next.plus(grows - collected)
        all_bytes = max(forecast.loop[1], forecast.next.most)
        is_whole = not forecast.outcome.is_part and _has_host_room(forecast)
        yield Remedy(
            f"{to_cpu} of what the loop keeps, {format_size(grows)} each iteration",
            max(collected, all_bytes - alone.most),
            "a copy each iteration",
            True if is_whole and forecast.has_room(alone) else None,
        )


def _has_host_room(forecast: Forecast) -> bool:
    """Whether CPU memory has room for what all iterations keep.

    Where nobody knows how many there are, for twice as much as there is.
    """
    turns, _ = forecast.loop
    kept = turns * forecast.outcome.grows_bytes or 2 * forecast.collected_bytes
    return kept <= host.available_bytes()
