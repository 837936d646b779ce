"""Trains a Transformer encoder on sequences of varying length.

A plain PyTorch script: it knows nothing of oomph. Lengths are log-uniform, so that
most sequences are short; each batch is padded to its longest one.

    python train_lengths.py --full --sorted
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

PADDING = 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="12 layers, 1024 tokens")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a batch")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--sorted", action="store_true", help="from short to long")
    parser.add_argument("--amp", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


class Encoder(nn.Module):
    """Embeddings, Transformer layers, and a head that names each token."""

    def __init__(self, vocabulary: int, longest: int, layers: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.positions = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        return self.head(self.layers(x, src_key_padding_mask=tokens == PADDING))


def make_batches(
    arguments: argparse.Namespace, vocabulary: int, longest: int
) -> list[torch.Tensor]:
    """Padded batches in page-locked memory; the same for the same seed."""
    generator = torch.Generator().manual_seed(arguments.seed)
    count = arguments.steps * arguments.batch
    lengths = (longest ** torch.rand(count, generator=generator)).long().tolist()
    if arguments.sorted:
        lengths.sort()
    sequences = [
        torch.randint(1, vocabulary, (length,), generator=generator)
        for length in lengths
    ]
    return [
        pad_sequence(
            sequences[i : i + arguments.batch], batch_first=True, padding_value=PADDING
        ).pin_memory()
        for i in range(0, count, arguments.batch)
    ]


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    vocabulary, longest, layers, width = (
        (32000, 1024, 12, 768) if arguments.full else (512, 128, 2, 128)
    )
    batches = make_batches(arguments, vocabulary, longest)
    model = Encoder(vocabulary, longest, layers, width).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    for step, batch in enumerate(batches):
        tokens = batch.to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=arguments.amp):
            scores = model(tokens)
            loss = F.cross_entropy(
                scores.flatten(0, 1), tokens.flatten(), ignore_index=PADDING
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        shape = "x".join(str(size) for size in tokens.shape)
        print(f"step {step} batch {shape} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
