"""``oomph replay``: a trace asks for what the run asked for, and bad files say so."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from oomph.traces import format, reading
from support import MIB, ROOT, Result, oomph

SCRIPT = """
import torch
from torch import nn

layers = [part for _ in range(6) for part in (nn.Linear(1024, 1024), nn.GELU())]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
other = torch.cuda.Stream()
for step in range(4):
    batch = torch.randn(4096 + 512 * step, 1024, device="cuda")
    with torch.cuda.stream(other):
        buffer = torch.empty(5 << 20, device="cuda")
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ROOMY = "1TiB,context=64MiB"
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def replay(*arguments: str | Path) -> Result:
    return oomph("replay", *arguments)


def record(folder: Path, allocator: str) -> tuple[Path, dict]:
    """A trace, and the statistics of the run."""
    script, trace, stats = (folder / n for n in ("script.py", "trace", "stats"))
    script.write_text(SCRIPT)
    result = oomph(
        *("run", "--simulate", ROOMY, "--allocator", allocator),
        *("--trace", trace, "--stats", stats, script),
    )
    assert result.code == 0, result.said
    return trace, json.loads(stats.read_text())["0"]


def answer(*arguments: str | Path) -> dict:
    result = replay("--json", *arguments)
    assert result.code in (0, 1), result.said
    return json.loads(result.out)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> dict[str, tuple[Path, dict]]:
    return {
        allocator: record(tmp_path_factory.mktemp(allocator), allocator)
        for allocator in ("native", "expandable", "oomph")
    }


@pytest.mark.long
@pytest.mark.parametrize("by", ["native", "oomph"])
def test_a_replay_takes_byte_for_byte_what_the_run_took(by, recorded):
    reported = answer("--gpu", ROOMY, recorded[by][0])["cards"][0]["ways"]
    for way in ("native", "expandable", "oomph"):
        _, seen = recorded[way]
        run = reported[way]["run"]
        assert run["reserved_bytes"] == seen["device_bytes_peak"], way
        assert run["allocated_bytes"] == seen["allocated_bytes.all.peak"], way


@pytest.mark.long
def test_the_smallest_card_is_one_on_which_the_run_fits_too(recorded, tmp_path):
    trace, _ = recorded["native"]
    least = answer("--gpu", ROOMY, trace)["smallest_bytes"]["native"]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    codes = [
        oomph(
            *("run", "--simulate", f"{size},context=64MiB"),
            *("--allocator", "native", script),
        ).code
        for size in (least, least - least // 64)
    ]
    assert codes == [0, 1]


@pytest.mark.long
def test_settings_are_those_of_oomph_where_the_trace_is_replayed(recorded):
    trace, _ = recorded["native"]
    small, large = (
        answer("--gpu", "1TiB,context=0", "--set", f"page:{size}", trace)
        for size in ("2MiB", "64MiB")
    )
    least, more = (found["smallest_bytes"] for found in (small, large))
    assert more["native"] == least["native"]
    assert more["oomph"] > least["oomph"] + 32 * MIB


@pytest.mark.long
def test_what_cuda_takes_is_that_of_each_card(recorded):
    trace, _ = recorded["native"]
    both = answer("--gpu", "1TiB,context=64MiB,2TiB,context=576MiB", trace)
    alone = answer("--gpu", "2TiB,context=576MiB", trace)
    assert [card["ways"]["native"]["run"]["other_bytes"] for card in both["cards"]] == [
        64 * MIB,
        576 * MIB,
    ]
    assert both["smallest_bytes"] == alone["smallest_bytes"]


def test_lines_and_phases_are_recorded(recorded):
    trace = reading.read(recorded["native"][0])
    lines = {line for _, line, _ in trace.about["sites"].values()}
    assert {6, 10, 13} <= lines  # .cuda(), randn() and the model
    phases = {kind >> 3 & 3 for kind in trace.records if kind & 7 == 1}
    assert phases >= {0, 1, 2}


@pytest.mark.long
def test_a_snapshot_of_pytorch_is_replayed(tmp_path):
    script, snapshot = tmp_path / "script.py", tmp_path / "snapshot.pickle"
    script.write_text(
        "import torch\n"
        "early = torch.empty(96 << 20, dtype=torch.uint8, device='cuda')\n"
        "torch.cuda.memory._record_memory_history()\n"
        "late = torch.empty(32 << 20, dtype=torch.uint8, device='cuda')\n"
        "del early\n"
        f"torch.cuda.memory._dump_snapshot({str(snapshot)!r})\n"
    )
    result = oomph("run", "--simulate", ROOMY, "--allocator", "native", script)
    assert result.code == 0, result.said
    reported = answer("--gpu", ROOMY, snapshot)["cards"][0]["ways"]["native"]["run"]
    assert reported["allocated_bytes"] == 128 * MIB


LOG = """Thread,Time,Action,Pointer,Size,Stream
1,10:00:00,allocate,0x7f0000000000,104857600,0x0
1,10:00:01,allocate,0x7f0010000000,52428800,0x1
1,10:00:02,free,0x7f0000000000,104857600,0x0
1,10:00:03,allocate,0x7f0000000000,209715200,0x0
"""


@pytest.mark.long
def test_a_log_of_rmm_is_replayed(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    result = replay("--gpu", "200MiB,context=0,host=16MiB,1GiB,context=0", path)
    assert result.code == 1, result.said
    rows = [line.split() for line in result.out.splitlines()[1:3]]
    assert [row[3:7] for row in rows] == [["no"] * 4, ["fits"] * 4]
    assert "4 events in " in result.out


class Hostile:
    def __reduce__(self):
        return exec, ("import pathlib; pathlib.Path('pwned').write_text('x')",)


def bad_files(trace: bytes) -> dict[str, tuple[bytes, str]]:
    """Contents, and what is said of them."""
    records, end = trace[: len(trace) // 2], trace[-200:]
    empty = LOG.partition("\n")[0].encode()
    return {
        "nothing": (b"", "it is empty"),
        "text": (b"hello\n", "it is neither a trace of oomph run --trace"),
        "half": (records, "it is cut short: its end is missing"),
        "no end": (trace[:-4], "it is cut short: its end is missing"),
        "long end": (trace[:-9] + b"\xff" + trace[-8:], "its end is longer"),
        "zeros": (
            format.head({}) + b"\x01\x00" + format.tail({"devices": 1}),
            "cut short after event 1",
        ),
        "twice": (
            format.head({}) + b"\x02\x01\x00" + format.tail({"devices": 1}),
            "what is not there is freed: event 1",
        ),
        "kind": (
            format.head({}) + b"\x07\x00" + format.tail({"devices": 1}),
            "a record is of no kind: event 1",
        ),
        "hostile": (
            pickle.dumps(Hostile()),
            "it is a pickle that would call builtins.exec",
        ),
        "pickle": (pickle.dumps([1, 2]), "it is a pickle, but no snapshot"),
        "broken": (pickle.dumps({"segments": []})[:-5], "it is a damaged pickle"),
        "silent": (
            pickle.dumps({"segments": [], "device_traces": [[]]}),
            "it has no history: call torch.cuda.memory._record_memory_history()",
        ),
        "empty log": (empty, "it is a log of RMM in which nothing is allocated"),
        "row": (f"{LOG}1,10:00:04,allocate,0x7f".encode(), "line 6 of the log is"),
        "end": (end, "it is neither a trace"),
    }


@pytest.mark.long
@pytest.mark.parametrize("kind", bad_files(b"x" * 400))
def test_a_bad_file_is_named_with_what_is_wrong(kind, recorded, tmp_path):
    data, said = bad_files(recorded["native"][0].read_bytes())[kind]
    path = tmp_path / "file"
    path.write_bytes(data)
    result = oomph("replay", "--gpu", "1GiB", path, cwd=tmp_path)
    assert result.code == 4, result.said
    assert f"oomph: {path}: " in result.err and said in result.err
    assert "Traceback" not in result.said
    assert not (tmp_path / "pwned").exists()


def test_questions_that_cannot_be_asked_have_their_own_code(recorded, tmp_path):
    trace, _ = recorded["native"]
    for card in ("0GiB", "rtx9999"):
        result = replay("--gpu", card, trace)
        assert result.code == 2
        assert "must start with the memory of a device" in result.err
    for setting, said in (("reserv:0", "reserve"), ("offload:off", "each way sets")):
        result = replay("--gpu", "1GiB", "--set", setting, trace)
        assert (result.code, said in result.err) == (2, True), result.said
    result = oomph("run", "--trace", tmp_path / "no" / "file", ROOT / "setup.py")
    assert result.code == 2
    assert "--trace: there is no folder" in result.err
    assert replay("--gpu", "1GiB", tmp_path / "nothing").code == 4
