"""Rebuilds trainings by recipes of torchtune.

    PYTHONPATH=deps python benchmarks/published/score.py torchtune

``deps`` has torchtune 0.4.0, torchao 0.9.0, omegaconf, antlr4-python3-runtime 4.9,
tiktoken, blobfile, pycryptodomex, sentencepiece and kagglehub (``pip install --target``
without dependencies). Requests come as JSON on standard input: the recipe, its config
and the arguments. Standard output gets a line for each figure of the third step: the
peak of active memory in MiB, as the recipe logs it, or the ms of the virtual clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from forks import training_of

HERE = Path(__file__).parent
STEPS = 3
ALWAYS = "tokenizer.max_seq_len=4096 gradient_accumulation_steps=1 batch_size=2 seed=1"


def figures(card: str, request: dict[str, str]) -> dict[str, float]:
    """The figures of one training."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "oomph", "run", "--allocator", "native"),
                *("--simulate", card, str(HERE / "tune.py")),
                *(request["recipe"], request["config"], *ALWAYS.split()),
                *(f"max_steps_per_epoch={STEPS}", "epochs=1", f"output_dir={folder}"),
                *request["arguments"].split(),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    for line in done.stdout.splitlines():
        if line.startswith(f'{{"step": {STEPS},'):
            logged = json.loads(line)
            peak_mib = logged["peak_memory_active"] * 1024
            return {"peak active": peak_mib, "step": logged["ms"]}
    raise SystemExit(f"{request}: {done.stdout[-3000:]}{done.stderr[-3000:]}")


def main() -> None:
    """Serves requests, those of one training together."""
    card = os.environ.pop("OOMPH_SIMULATE")
    requests = json.load(sys.stdin)
    for training, group in groupby(requests, key=training_of):
        found = figures(card, training)
        for request in group:
            print(json.dumps(found[request["figure"]]), flush=True)


if __name__ == "__main__":
    main()
