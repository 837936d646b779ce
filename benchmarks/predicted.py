"""Trains a model of transformers, of its usual size, for test_forecast.py.

Arguments: the model's name. Two steps, as a script of its makers has them.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers as hf

WORDS = 30_000


def llama() -> tuple[Any, dict[str, Any]]:
    """A language model of 220 million parameters, 8 texts of 1024 words."""
    config = hf.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, vocab_size=WORDS
    )
    words = torch.randint(WORDS, (8, 1024), device="cuda")
    return hf.LlamaForCausalLM(config), {"input_ids": words, "labels": words}


def bert() -> tuple[Any, dict[str, Any]]:
    """BERT with a classifier, 64 texts of 256 words."""
    model = hf.BertForSequenceClassification(hf.BertConfig())
    words = torch.randint(WORDS, (64, 256), device="cuda")
    labels = torch.zeros(64, dtype=torch.long, device="cuda")
    return model, {"input_ids": words, "labels": labels}


def vit() -> tuple[Any, dict[str, Any]]:
    """A vision transformer with a classifier, 128 pictures."""
    model = hf.ViTForImageClassification(hf.ViTConfig(num_labels=1000))
    labels = torch.zeros(128, dtype=torch.long, device="cuda")
    pictures = torch.randn(128, 3, 224, 224, device="cuda")
    return model, {"pixel_values": pictures, "labels": labels}


def main() -> None:
    """Trains it."""
    model, batch = {"llama": llama, "bert": bert, "vit": vit}[sys.argv[1]]()
    model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
