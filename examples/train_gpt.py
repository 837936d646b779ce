"""Trains a GPT on the sources of Python's standard library.

A plain PyTorch script: it knows nothing of oomph. The defaults are GPT-2 124 M.

    python train_gpt.py --batch 12 --amp --steps 10
"""

from __future__ import annotations

import argparse
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 50304  # GPT-2's, rounded up; the text uses its first 256 tokens


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--block", type=int, default=1024, help="tokens in a sequence")
    parser.add_argument("--batch", type=int, default=12, help="sequences in a batch")
    parser.add_argument("--accumulate", type=int, default=1, help="batches in a step")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--amp", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--checkpoint", action="store_true", help="recompute blocks")
    parser.add_argument("--fused", action="store_true", help="the fused AdamW")
    parser.add_argument(
        "--evaluate", type=int, default=0, help="batches of evaluation before training"
    )
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


class Block(nn.Module):
    """Causal attention and an MLP, each after a LayerNorm, added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, tokens, width)
        return self.projection(y)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attend(self.norm_1(x)))
        return x + self.dropout(self.contract(F.gelu(self.expand(self.norm_2(x)))))


class GPT(nn.Module):
    """Token and position embeddings, blocks, and a head tied to the embedding."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        width = arguments.width
        self.recompute = arguments.checkpoint
        self.tokens = nn.Embedding(arguments.vocabulary, width)
        self.positions = nn.Embedding(arguments.block, width)
        self.blocks = nn.ModuleList(
            Block(width, arguments.heads, arguments.dropout)
            for _ in range(arguments.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, arguments.vocabulary, bias=False)
        self.apply(self.initialise)
        self.head.weight = self.tokens.weight

    @staticmethod
    def initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            if self.recompute and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def load_text() -> torch.Tensor:
    """The standard library's sources, one token a byte."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


class Batches:
    """Random pieces of the text, with the same pieces one token later as targets."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.text = load_text()
        self.shape = arguments.batch, arguments.block
        self.device = arguments.device
        self.generator = torch.Generator().manual_seed(arguments.seed)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch, block = self.shape
        last = len(self.text) - block - 1
        starts = torch.randint(last, (batch,), generator=self.generator)
        pieces = torch.stack([self.text[i : i + block + 1] for i in starts.tolist()])
        if self.device.startswith("cuda"):
            pieces = pieces.pin_memory().to(self.device, non_blocking=True)
        return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


@torch.no_grad()
def estimate_loss(model: GPT, batches: Batches, count: int) -> float:
    model.eval()
    losses = [model(*batches.next()).item() for _ in range(count)]
    model.train()
    return sum(losses) / count


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    device_type = arguments.device.split(":")[0]
    amp = torch.autocast(device_type, dtype=torch.bfloat16, enabled=arguments.amp)

    batches = Batches(arguments)
    model = GPT(arguments).to(arguments.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=6e-4, weight_decay=0.1, fused=arguments.fused or None
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters", flush=True)

    if arguments.evaluate:
        with amp:
            loss = estimate_loss(model, batches, arguments.evaluate)
        print(f"loss before training {loss:.4f}", flush=True)

    torch.manual_seed(arguments.seed)  # dropout is drawn on the device
    for step in range(arguments.steps):
        start = time.perf_counter()
        total = 0.0
        for _ in range(arguments.accumulate):
            with amp:
                loss = model(*batches.next()) / arguments.accumulate
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ms = (time.perf_counter() - start) * 1e3
        print(f"step {step} loss {total:.9g} {ms:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
