"""Logs of RAPIDS Memory Manager (RMM) as traces: CSV, a row for each call."""

from __future__ import annotations

import csv
import io

from oomph.traces.format import Trace, TraceError, Writer

_COLUMNS = ("Action", "Pointer", "Size", "Stream")


def is_one(data: bytes) -> bool:
    """Whether data may be such a log."""
    first = data.split(b"\n", 1)[0]
    return all(column.encode() in first for column in _COLUMNS)


def parse(data: bytes) -> Trace:
    """Reads a log.

    Raises:
        TraceError: It is damaged, or nothing was allocated.
    """
    rows = csv.DictReader(io.StringIO(data.decode(errors="replace")), strict=True)
    writer = Writer()
    has_any = False
    try:
        for row in rows:
            action, address = row["Action"], int(row["Pointer"], 0)
            if action == "allocate":
                has_any = True
                writer.alloc(0, address, int(row["Size"]), row["Stream"])
            elif action == "free":
                writer.free(0, address)
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        raise TraceError(f"line {rows.line_num} of the log is damaged: {error}") from (
            None
        )
    if not has_any:
        raise TraceError("it is a log of RMM in which nothing is allocated")
    return writer.trace({"from": "a log of RMM"})
