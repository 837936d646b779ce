"""benchmarks/published: rows rebuilt on simulated cards, and what is told of them."""

import json
import re
import statistics
import subprocess
import sys

import pytest
from support import ROOT

sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks" / "published")]

import bars  # noqa: E402
import checked  # noqa: E402
import score  # noqa: E402

CHEAP = (  # of each card, and of each way to look at a module
    "cross_entropy full, V 131072, A100-SXM4-80GB",
    "rope full, T 16384, A100-SXM4-80GB",
    "fused_linear_cross_entropy full, BT 32768, A100-SXM4-80GB",
    "geglu forward, T 8192, A100-SXM4-80GB",
    "geglu backward, T 8192, A100-SXM4-80GB",
    "llama4_rope full, H 8192, H100 80GB HBM3",
    "fused_linear_jsd full, BT 8192, H100 80GB HBM3",
    "tiled_swiglu full, T 16384, RTX 4090",
    "sparsemax full, V 32768, RTX 3090",
    "group_norm full, C 2048, B200",
)


@pytest.mark.long
def test_cheap_rows_are_within_their_bar():
    chosen = [r for r in score.rows() if r.kind == "kernel memory" and r.name in CHEAP]
    assert len(chosen) == len(CHEAP)
    found = {each["name"]: score.off(each) for each in score.score(chosen)}
    bar = bars.BARS["kernel memory"]
    assert {name: off for name, off in found.items() if abs(off) > bar.worst} == {}
    assert statistics.median(map(abs, found.values())) <= bar.median


@pytest.mark.parametrize("kind", bars.BARS)
def test_a_kind_of_figure_meets_its_bar_or_says_why_not(kind):
    found = checked.results()[kind]
    plain = [abs(score.off(each)) for each in found if not checked.note_of(each)]
    assert statistics.median(abs(score.off(each)) for each in found) <= (
        bars.BARS[kind].median
    )
    assert max(plain, default=0) <= bars.BARS[kind].worst


def test_what_a_process_held_beside_embeddings_is_the_same_in_each_row():
    found = checked.results()[bars.BESIDE_COMPILED]
    for width in ("768", "4096"):
        of_width = [each for each in found if f" x {width}," in each["name"]]
        held = [each["published"] - each["simulated"] for each in of_width]
        assert len(held) == 8
        assert max(held) - min(held) < 0.01  # of 12 GiB


def test_times_of_the_half_that_judges_meet_their_bar():
    found = [e for e in checked.results()[bars.TIME] if in_second_half(e)]
    ratios = [each["simulated"] / each["published"] for each in found]
    assert len(found) > 150
    assert statistics.median(abs(r - 1) for r in ratios) <= bars.TIME_MEDIAN
    assert statistics.mean(1 / 1.5 <= r <= 1.5 for r in ratios) >= bars.TIME_NEAR
    assert checked.in_order(found) >= bars.TIME_IN_ORDER


def in_second_half(result) -> bool:
    return score.half_of(result["name"]) == "second"


@pytest.mark.long
def test_cheap_times_are_what_the_page_says():
    names = {n for n in CHEAP if n.startswith(("geglu forward", "llama4", "group"))}
    chosen = [r for r in score.rows() if r.kind == bars.TIME and r.name in names]
    known = {each["name"]: each["simulated"] for each in checked.results()[bars.TIME]}
    assert len(chosen) == 3
    for each in score.score(chosen):
        assert each["simulated"] == pytest.approx(known[each["name"]], rel=0.01)


def test_each_published_row_has_a_result_and_a_source():
    every = {(row.kind, row.name): row for row in score.rows()}
    found = json.loads(score.RESULTS.read_text())
    assert {(each["kind"], each["name"]) for each in found} == every.keys()
    for each in found:
        row = every[each["kind"], each["name"]]
        assert each["published"] == row.published
        assert each["source"] == row.source
        assert re.search(r"@.*:|#\d+$", row.source)  # a line of a file, or a report


def test_each_note_is_of_a_row():
    found = json.loads(score.RESULTS.read_text())
    names = [(each["kind"], each["name"]) for each in found]
    unused = [
        note
        for note in bars.NOTES
        if not any(kind == note[0] and name.startswith(note[1]) for kind, name in names)
    ]
    assert unused == []


def test_the_page_has_the_tables_of_the_results():
    said = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "readme.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert "checked.md" not in said.stdout
    page = (ROOT / "docs" / "checked.md").read_text()
    for name in checked.TABLES:
        assert f"<!-- checked: {name} -->" in page
