"""A recipe of torchtune, unchanged, on tokens and weights that are made up.

    oomph run --simulate a100-80gb tune.py RECIPE CONFIG KEY=VALUE…

The recipe and its config are named as for `tune run`, whose overrides follow. What
comes from a network stands in for itself here: the tokenizer, the dataset, packed to
sequences that are full, and the checkpoint, whose weights are all the same number.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from oomph import simulate
from torch import Tensor

HERE = "tune"  # this module, to whom reads a config
VOCABULARY = 128000  # of Llama 3, without what is special
SAMPLE = 256  # tokens of a text


class Tokenizer:
    """What a recipe asks of one."""

    pad_id = 0

    def __init__(self, max_seq_len: int, **_: Any) -> None:
        self.max_seq_len = max_seq_len


class Texts(torch.utils.data.Dataset[dict[str, list[int]]]):
    """Texts of one length, enough for ``packs`` sequences."""

    def __init__(self, length: int, packs: int = 8) -> None:
        self._count = length * packs // SAMPLE

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        if index >= self._count:
            raise IndexError(index)
        row = torch.randint(1, VOCABULARY, (SAMPLE,)).tolist()
        return {"tokens": row, "labels": row}


def dataset(tokenizer: Tokenizer, packed: bool = True, **_: Any) -> Any:
    """Packed texts."""
    from torchtune.datasets import PackedDataset

    length = tokenizer.max_seq_len
    return PackedDataset(Texts(length), max_seq_len=length)


class Checkpointer:
    """The weights of a model, each in the memory of one number; nothing is saved."""

    def __init__(self, model: str, **_: Any) -> None:
        self._model = model

    def load_checkpoint(self) -> dict[str, Any]:
        """As of a file."""
        from torchtune.config._utils import _get_component_from_path

        with torch.device("meta"):
            model = _get_component_from_path(self._model)()
        return {"model": {k: _same(v) for k, v in model.state_dict().items()}}

    def save_checkpoint(self, *_: Any, **__: Any) -> None:
        """Does nothing."""


class Logger:
    """Tells what a recipe logs of a step, and the time by the virtual clock."""

    def __init__(self, **_: Any) -> None:
        self._last_ms = self._now_ms()

    def log_config(self, *_: Any) -> None:
        """Does nothing."""

    def log_dict(self, payload: dict[str, Any], step: int) -> None:
        """Prints a line of JSON."""
        now_ms = self._now_ms()
        found = {k: float(v) for k, v in payload.items()}
        print(json.dumps({"step": step, "ms": now_ms - self._last_ms, **found}))
        self._last_ms = now_ms

    def close(self) -> None:
        """Does nothing."""

    @staticmethod
    def _now_ms() -> float:
        torch.cuda.synchronize()
        return simulate.usage().now_ns / 1e6


def _same(like: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.bfloat16).expand(like.shape)


def main(recipe: str, config: str, overrides: list[str]) -> None:
    """Runs the recipe."""
    found = importlib.util.find_spec("torchtune")
    if found is None or found.origin is None:
        raise SystemExit("torchtune is not installed")
    # Its folder of recipes says on import that it is none to import.
    recipes = Path(found.origin).parents[1] / "recipes"
    sys.path.insert(0, str(Path(__file__).parent))
    sys.argv = [
        *(f"{recipe}.py", "--config", str(recipes / "configs" / f"{config}.yaml")),
        *(f"tokenizer._component_={HERE}.Tokenizer", "~tokenizer.path"),
        *(f"dataset._component_={HERE}.dataset", "dataset.packed=True"),
        f"checkpointer._component_={HERE}.Checkpointer",
        f"metric_logger._component_={HERE}.Logger",
        *overrides,
    ]
    runpy.run_path(str(recipes / sys.argv[0]), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
