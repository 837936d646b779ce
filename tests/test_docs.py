"""README.md and docs/: what they show runs, and where they point there is something."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from oomph.base.sizes import parse_size
from support import ROOT, execute, lines

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
RUN = [
    README,
    *(DOCS / f"{n}.md" for n in ("getting_started", "guard", "simulated_card")),
]
CLAIMS = runpy.run_path(str(ROOT / "tools" / "claims.py"))["claims"]()
TRAIN = """
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.parse_args()
assert torch.ones(1000, device="cuda").add(1).shape == (1000,)
print("trained")
"""
RUN_ELSEWHERE = {
    "make demo": "test_the_demo_shows_what_the_readme_says",
    "make test": "this run",
    "pip install setuptools wheel nvidia-cuda-crt": "tools/make_venv.py, for this run",
    "pip install --no-build-isolation .": "make, for this run",
    "make wheel": "make test-versions, which takes other versions of PyTorch",
    "pip install dist/oomph-*.whl": "make test-versions",
}


def commands(page: Path) -> list[str]:
    """What a page has its reader type, without comments."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line[2:].partition("  #")[0].strip() for line in lines if line[:2] == "$ "]


def anchors(page: Path) -> set[str]:
    """Its headings, as links name them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-")
        for head in heads
    }


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        found = target.exists() and target.is_relative_to(ROOT)
        if not found or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_can_be_reached_from_the_readme(page):
    name = str(page.relative_to(ROOT))
    assert page == README or f"({name}" in README.read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    dict.fromkeys(c for page in RUN for c in commands(page) if c not in RUN_ELSEWHERE),
)
def test_a_command_runs(command, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = shlex.split(command)
    given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    program, *arguments = words[len(given) :]
    card = None if "--simulate" in command else "2GiB,devices=2"
    own_port = {"PET_STANDALONE": "1"}  # torchrun's; others may run beside
    ran = execute(
        *(Path(sys.executable).with_name(program), *arguments),
        card=card,
        cwd=tmp_path,
        **{**own_port, **given},
    )
    if "offload:off" in command:  # it shows an error
        assert ran.code == 1 and "torch.OutOfMemoryError" in ran.err
    else:
        assert ran.code == 0, ran.err
        assert ("oomph 0." if "--version" in command else "trained") in ran.out


def test_what_is_run_elsewhere_is_in_the_readme():
    assert {*RUN_ELSEWHERE} <= {*commands(README)}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.quote[:40])
def test_a_claim_stands_in_its_page_and_what_shows_it_is_there(claim):
    assert claim.quote in " ".join((ROOT / claim.page).read_text().split())
    path, _, function = claim.shown_by.partition("::")
    assert (ROOT / path).exists()
    assert not function or f"def {function}(" in (ROOT / path).read_text()


def rows(text: str) -> list[list[str]]:
    """The lines of tables that say what became of a program, without times.

    Of a loss, what all processors compute: they round otherwise.
    """
    found = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    ends = ("finished", "OUT OF MEMORY")
    return [
        [
            re.sub(r"(\d\.\d{4})\d+", r"\1", cell)
            for cell in row
            if not re.fullmatch(r"\d+\.\d", cell)
        ]
        for row in found
        if len(row) > 3 and row[2] in ends
    ]


def size(cell: str) -> int | str:
    """The bytes of a cell that is a size."""
    if not re.fullmatch(r"[\d.]+ (bytes|[KMG]iB)", cell):
        return cell
    return parse_size(cell.removesuffix(" bytes"))


def near(cell: str) -> object:
    """What equals a cell: a size within a thousandth, some blocks more or fewer."""
    found = size(cell)
    return found if isinstance(found, str) else pytest.approx(found, rel=1e-3)


@pytest.fixture
def demos(monkeypatch):
    """The main program of a demo, whose scripts are forks."""

    def main_of(name: str, *arguments: str):
        program = runpy.run_path(str(ROOT / "examples" / name))

        def fork(command, *, env, **_):
            assert env["OMP_NUM_THREADS"] == "1"  # as execute has it
            card, conf = (env.get(n) for n in ("OOMPH_SIMULATE", "OOMPH_CONF"))
            ran = execute(*command, cwd=ROOT, timeout=600, card=card, conf=conf)
            return subprocess.CompletedProcess(command, ran.code, ran.out, ran.err)

        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.setattr(program["subprocess"], "run", fork)
        return program["main"]

    return main_of


@pytest.mark.long
def test_the_demo_shows_what_the_readme_says(demos, capsys):
    assert demos("demo.py")() == 0
    out = capsys.readouterr().out
    shown = rows(README.read_text())
    assert len(shown) == 11
    assert [[*map(size, row)] for row in rows(out)] == [
        [*map(near, row)] for row in shown
    ]
    on_cpu, ours = lines(out, "small GPT, float32  ")[::2]
    assert on_cpu.split()[-6:] == ours.split()[-6:]  # to the last digit


@pytest.mark.long
def test_the_demo_of_many_cards_goes_through(demos, capsys):
    assert demos("demo_cluster.py", "--ranks", "2")() == 0
    said = capsys.readouterr().out
    gloo, nccl, short, alone = said.splitlines()[1:5]
    assert len(gloo.split("gloo")[1].split()) == 4 + 3  # losses, peak, seconds, outcome
    assert "goes on: 2 ranks used host memory" in short
    assert "All losses are equal." in said
    assert 20 < float(alone.split()[-3]) < 40  # GiB of a card's 79
