"""Writes liger.csv: rows that Liger-Kernel published, from a checkout of it.

    git clone https://github.com/linkedin/Liger-Kernel
    python benchmarks/published/extract.py Liger-Kernel

Taken are the rows of plain PyTorch whose module kernels.py rebuilds, the last of each
where several were published.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

from kernels import BY_NAME

REPOSITORY = "linkedin/Liger-Kernel"
PATH = "benchmark/data/all_benchmark_data.csv"
PLAIN = {"huggingface", "torch"}
COLUMNS = ("kernel", "metric", "mode", "x_name", "x", "published", "config", "gpu")


def rows(checkout: Path) -> dict[tuple[str, ...], dict[str, str]]:
    git = ["git", "-C", str(checkout)]
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    text = subprocess.check_output([*git, "show", f"{commit}:{PATH}"], text=True)
    found = {}
    reader = csv.DictReader(text.splitlines())
    for row in reader:
        name = row["kernel_name"]
        if name not in BY_NAME or row["kernel_provider"] not in PLAIN:
            continue
        chosen = {
            "kernel": name,
            "metric": row["metric_name"],
            "mode": row["kernel_operation_mode"],
            "x_name": row["x_name"],
            "x": str(int(float(row["x_value"]))),
            "published": row["y_value_50"],
            "config": row["extra_benchmark_config_str"],
            "gpu": row["gpu_name"],
        }
        key = tuple(chosen[c] for c in COLUMNS if c != "published")
        source = f"{REPOSITORY}@{commit[:8]}:{PATH}#{reader.line_num}"
        found[key] = {**chosen, "source": source}
    return found


def main(checkout: str) -> None:
    with open(Path(__file__).with_name("liger.csv"), "w", newline="") as file:
        writer = csv.DictWriter(file, (*COLUMNS, "source"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(Path(checkout)).values())


if __name__ == "__main__":
    main(sys.argv[1])
