"""Rebuilds trainings on many cards, as rank 0 of a world whose others do not exist.

    TORCHTITAN=checkout python benchmarks/published/score.py cluster

The checkout is torchtitan at the commit that the sources name. It needs torchdata,
tensorboard, tiktoken, blobfile and torchao 0.7.0 (``pip install --target`` without
dependencies, and PYTHONPATH), and with PyTorch 2.11
TORCHINDUCTOR_SIZE_ASSERTS=0, as the Llama of then gives attention other strides than
Inductor expects. Requests come as JSON on standard input: the model, how
many ranks, and the arguments of train.py. Standard output gets a line for each: the
peak of what PyTorch had reserved after three steps, in MiB, as train.py logs it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
LOGGED = re.compile(r"step: +3 .*memory: +([\d.]+)GiB")


def peak_mib(checkout: str, card: str, request: dict[str, str]) -> float:
    """What rank 0 had reserved at its peak."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "oomph", "run", "--allocator", "native"),
                *("--simulate", card, "--world", request["world"]),
                *(HERE / "titan.py", checkout, "--job.dump_folder", folder),
                *("--job.config_file", f"{checkout}/train_configs/{request['model']}"),
                *("--training.steps", "3", "--metrics.log_freq", "1"),
                *("--metrics.disable_color_printing", *request["arguments"].split()),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    found = LOGGED.search(done.stdout + done.stderr)
    if found is None:
        raise SystemExit(f"{request}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return float(found[1]) * 1024


def main() -> None:
    """Serves requests."""
    checkout = os.environ.get("TORCHTITAN")
    if checkout is None:
        raise SystemExit("TORCHTITAN: name the checkout of torchtitan")
    card = os.environ.pop("OOMPH_SIMULATE")
    for request in json.load(sys.stdin):
        print(json.dumps(peak_mib(checkout, card, request)), flush=True)


if __name__ == "__main__":
    main()
