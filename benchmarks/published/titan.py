"""torchtitan's own train.py, unchanged, on tokens that are made up.

    oomph run --simulate 95GiB,gpu=h100 --world 8 titan.py CHECKOUT ARGUMENTS…

The arguments are those of train.py. Its tokenizer and its data are left out, as they
come from a network. Attention is that which PyTorch had when the figures were measured:
cuDNN's came later.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

VOCABULARY = 128256  # of Llama 3


class Tokens(IterableDataset):  # type: ignore[type-arg]
    """Sequences and what follows each token."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Without an end."""
        while True:
            row = torch.randint(0, VOCABULARY, (self._length + 1,))
            yield row[:-1], row[1:]


class Loader(DataLoader):  # type: ignore[type-arg]
    """One with the state that train.py would save."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is loaded."""


def main(checkout: str, arguments: list[str]) -> None:
    """Runs train.py."""
    sys.path.insert(0, checkout)
    from torchtitan import datasets

    def load(
        name: str, path: str, tokenizer: object, batch: int, length: int, *_: int
    ) -> Loader:
        return Loader(Tokens(length), batch)

    datasets.build_tokenizer = lambda *_: SimpleNamespace(n_words=VOCABULARY)
    datasets.build_hf_data_loader = load
    torch.backends.cuda.enable_cudnn_sdp(False)
    sys.argv = [f"{checkout}/train.py", *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
