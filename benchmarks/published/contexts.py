"""What a process takes of a card besides what PyTorch reserves, after a product.

Run by score.py on the card: for each row of JSON that it reads a number in MiB.
"""

from __future__ import annotations

import json
import sys

import torch


def outside_mib() -> float:
    """In use on the device, and not PyTorch's."""
    square = torch.empty(1024, 1024, device="cuda")
    square @ square
    free, total = torch.cuda.mem_get_info()
    return (total - free - torch.cuda.memory_reserved()) / (1 << 20)


if __name__ == "__main__":
    for _ in json.load(sys.stdin):
        print(outside_mib())
