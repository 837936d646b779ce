"""Scores what oomph says of programs that were written from reports of others.

    python benchmarks/reported/score.py oom [NAME ...]
    python benchmarks/reported/score.py leaks [NAME ...]

Each program is run on a simulated card, one after another: up to an hour a set.

* `oom`: 171 programs that run out of memory on the card of their first line. The
  forecast is held against the true peak (`true.json`, measured with room), and each
  remedy that a knob of the program stands for is applied and run.
* `leaks`, `innocent`: 316 and 306 programs. The line that keeps the memory carries
  `# LEAK`; a line that would do as well `# ALSO`. An innocent one must not be accused.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
KNOBS = {  # parts of a remedy's text, and the knob that does the same
    r"batch \d+ -> (\d+)": "BATCH",
    r"checkpointing the \d+ (?:\S+\.)?(\w+) modules": "CHECKPOINT",
    r"(torch\.autocast)": "AUTOCAST",
    r"(no_grad)": "NO_GRAD",
    r"(fused=True)": "FUSED",
    r"(\.cpu\(\))": "CPU_OUTPUTS",
    r"(sparse=True)": "SPARSE",
    r"(scaled_dot_product_attention)": "SDPA",
    r"\] of \S+ in (\d+) chunks": "CHUNKS",
    r"(logits_to_keep=1)": "KEEP_LAST",
    r"(freeing a layer's old keys)": "INPLACE",
    r"(parameters in bfloat16)": "DTYPE",
    r"(Adafactor)": "OPT",
}
VALUES = {"BATCH", "CHECKPOINT", "CHUNKS"}  # the text says the value
WORDS = {"DTYPE": "bf16", "OPT": "adafactor"}  # of the rest it is 1


def run(program: Path, card: str, *options: str, **variables: str) -> tuple[int, str]:
    words = ["run", "--simulate", card, *options, str(program)]
    done = subprocess.run(
        [sys.executable, "-m", "oomph", *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def programs(folder: str, names: list[str]) -> list[Path]:
    found = sorted((HERE / folder).glob("[0-9]*_*.py"))
    return [p for p in found if not names or any(name in p.name for name in names)]


# ---- Out of memory


def knobs_of(action: str, source: str) -> dict[str, str] | None:
    """The knobs that do what a remedy says; None if the program lacks one."""
    found = {}
    for part in action.split(", and "):
        known = [(k, m[1]) for p, k in KNOBS.items() if (m := re.search(p, part))]
        if not known or not re.search(rf"\b{known[0][0]}\b", source.splitlines()[1]):
            return None
        knob, value = known[0]
        found[knob] = value if knob in VALUES else WORDS.get(knob, "1")
    return found


def off_of(text: str, peak: int) -> float | None:
    """How far the forecast is off; of a range its nearer end, if the peak is outside.

    None if nothing is said of a whole step.
    """
    size = r"([\d.]+) (\w+)"
    pattern = r"(?:A whole step needs|all \d+ iterations need) "
    pattern += rf"(?:about|between {size} and) {size}"
    said = re.search(pattern, text)
    if said is None:
        return None
    most = float(said[3]) * UNITS[said[4]]
    least = float(said[1]) * UNITS[said[2]] if said[1] else most
    return min(max(peak, least), most) / peak - 1


def score_oom(names: list[str]) -> None:
    true = json.loads((HERE / "oom" / "true.json").read_text())
    total: Counter[str] = Counter()
    for program in programs("oom", names):
        source, peak = program.read_text(), true[program.stem]["peak"]
        card = source.splitlines()[0].split()[-1]
        _, text = run(program, card, "--set", "offload:off,error:full")
        off = off_of(text, peak)
        print(program.stem, "not predicted" if off is None else f"{off:+.1%}")
        total["predicted"] += off is not None
        total["within 5 %"] += off is not None and abs(off) <= 0.05
        total["within 15 %"] += off is not None and abs(off) <= 0.15
        known = text.partition("oomph does not know whether it is enough")[0]
        rows = re.findall(r"^ +[\d.]+ \w+  (.+?); cost: (.*)$", known, re.MULTILINE)
        for action, cost in rows:
            offload = "on-oom" if action.startswith("oomph's offload") else "off"
            knobs = {} if offload == "on-oom" else knobs_of(action, source)
            if knobs is None or "(unknown" in cost:
                continue
            says = "(not enough alone)" not in cost
            fits = run(program, card, "--set", f"offload:{offload}", **knobs)[0] == 0
            print("   ", "right" if fits == says else "WRONG", says, action)
            total[f"enough {says}"] += 1
            total[f"enough {says}, right"] += fits == says
    print(dict(total))


# ---- Leaks


def marked(source: str) -> set[int]:
    """The lines of the statements that are marked."""
    lines = source.splitlines()
    good = {i + 1 for i, line in enumerate(lines) if re.search("# (LEAK|ALSO)", line)}
    simple = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, simple):
            spanned = set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            good |= spanned if spanned & good else set()
    return good


def findings(text: str) -> list[tuple[bool, str]]:
    """All that were told: whether for certain, and the first line."""
    titles = "leaks found in|memory grows, may be bounded, seen in"
    blocks = re.split(rf"(?={titles})", text)[1:]  # a log may begin the line
    return [
        (block.startswith("leaks"), entry)
        for block in blocks
        for entry in re.findall(r"(?m)^\d+\. (.*)$", block)
    ]


def score_leaks(names: list[str]) -> None:
    total: Counter[str] = Counter()
    options = ["--values", "--set", "offload:off,leaks:report"]
    for folder in ("leaks", "innocent"):
        for program in programs(folder, names):
            _, text = run(program, "4GiB", *options, OMP_NUM_THREADS="1")
            told = findings(text)
            total[folder] += 1
            if folder == "innocent":
                accused = [entry for certain, entry in told if certain]
                total["accused"] += bool(accused)
                print(program.stem, accused or "ok")
                continue
            last = told[-1][1] if told else ""
            line = re.search(re.escape(program.name) + r":(\d+)", last)
            right = line is not None and int(line[1]) in marked(program.read_text())
            total["found"] += bool(told)
            total["right line"] += right
            print(program.stem, "right" if right else last or "missed")
    print(dict(total))


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or [""]
    scores = {"oom": score_oom, "leaks": score_leaks}
    if what not in scores:
        sys.exit(__doc__)
    scores[what](rest)
