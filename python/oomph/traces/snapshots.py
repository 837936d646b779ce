"""PyTorch's memory snapshots as traces.

``torch.cuda.memory._dump_snapshot()`` pickles them. A pickle can name any function, to
be called when it is read; none is looked up here, so a hostile one ends in an error.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from oomph.traces.format import Trace, TraceError, Writer

_MAGIC = b"\x80"


class _Reader(pickle.Unpickler):
    """Makes lists, dictionaries, text and numbers alone."""

    def find_class(self, module: str, name: str) -> Any:
        raise TraceError(
            f"it is a pickle that would call {module}.{name}; a snapshot of PyTorch "
            "calls nothing, so nothing of it was run"
        )


def is_one(data: bytes) -> bool:
    """Whether data may be a pickle."""
    return data.startswith(_MAGIC)


def parse(data: bytes) -> Trace:
    """Reads a snapshot.

    Raises:
        TraceError: It is none, or has no history.
    """
    try:
        found = _Reader(io.BytesIO(data)).load()
    except TraceError:
        raise
    except Exception as error:
        # Any byte may be wrong, and pickle has no error of its own for all of it.
        raise TraceError(f"it is a damaged pickle: {error}") from None
    try:
        return _trace(found)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise TraceError(
            f"it is a pickle, but no snapshot of torch.cuda.memory: {error!r}"
        ) from None


def _trace(found: dict[str, Any]) -> Trace:
    histories, segments = found["device_traces"], found["segments"]
    if not any(histories):
        raise TraceError(
            "it has no history: call torch.cuda.memory._record_memory_history() "
            "before the step that is to be seen"
        )
    writer = Writer()
    for device, history in enumerate(histories):
        mine = [segment for segment in segments if segment["device"] == device]
        _add_earlier(writer, device, history, mine)
    for device, history in enumerate(histories):
        for entry in history:
            _add(writer, device, entry)
    return writer.trace({"from": "a snapshot of PyTorch"})


def _add(writer: Writer, device: int, entry: dict[str, Any]) -> None:
    if entry["action"] == "alloc":
        writer.alloc(device, entry["addr"], entry["size"], entry["stream"])
    elif entry["action"] == "free_completed":
        writer.free(device, entry["addr"])


def _add_earlier(
    writer: Writer,
    device: int,
    history: list[dict[str, Any]],
    segments: list[dict[str, Any]],
) -> None:
    """Blocks from before the history: it frees them, or they are there at its end."""
    made: set[int] = set()
    for entry in history:
        address = entry["addr"]
        if entry["action"] == "alloc":
            made.add(address)
        elif entry["action"] == "free_completed" and address not in made:
            made.add(address)
            writer.alloc(device, address, entry["size"], entry["stream"])
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            if block["state"].startswith("active") and address not in made:
                size = block.get("requested_size", block["size"])
                writer.alloc(device, address, size, segment["stream"])
            address += block["size"]
