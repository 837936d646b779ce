"""Trains a student beside its teacher, on three streams.

A plain PyTorch script: it knows nothing of oomph. The next batch is copied on one
stream; the teacher, a moving average of the student, computes on another; the student
trains on the default stream.

    python train_streams.py --full
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

PATCH = 16


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="12 layers, 224 pixels")
    parser.add_argument("--batch", type=int, help="images; 4, or 48 of full size")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--amp", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


class VisionTransformer(nn.Module):
    """Patches of an image, Transformer layers, and a head on their mean."""

    def __init__(self, size: int, layers: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, stride=PATCH)
        self.positions = nn.Parameter(torch.randn((size // PATCH) ** 2, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width,
            width // 64,
            4 * width,
            dropout=0,
            activation="gelu",
            batch_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.layers(x).mean(1))


class Batches:
    """Noise, copied to the device one batch ahead on a stream of its own."""

    def __init__(self, count: int, batch: int, size: int, seed: int) -> None:
        self.count, self.shape = count, (batch, 3, size, size)
        self.generator = torch.Generator().manual_seed(seed)
        self.stream = torch.cuda.Stream()

    def copy_next(self) -> torch.Tensor:
        images = torch.rand(self.shape, generator=self.generator).pin_memory()
        with torch.cuda.stream(self.stream):
            return images.to("cuda", non_blocking=True)

    def __iter__(self) -> Iterator[torch.Tensor]:
        following = self.copy_next()
        for step in range(self.count):
            torch.cuda.current_stream().wait_stream(self.stream)
            images = following
            images.record_stream(torch.cuda.current_stream())
            if step + 1 < self.count:
                following = self.copy_next()
            yield images


class Teacher:
    """A moving average of a model that computes on a stream of its own."""

    def __init__(self, student: nn.Module) -> None:
        self.model = copy.deepcopy(student)
        self.student = student
        self.stream = torch.cuda.Stream()

    @torch.no_grad()
    def score(self, images: torch.Tensor) -> torch.Tensor:
        """Gives scores that the current stream must wait for."""
        self.stream.wait_stream(torch.cuda.current_stream())
        images.record_stream(self.stream)
        with torch.cuda.stream(self.stream):
            return self.model(images)

    @torch.no_grad()
    def follow(self) -> None:
        """Moves a little towards the student, once its step is done."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            torch._foreach_lerp_(
                list(self.model.parameters()), list(self.student.parameters()), 0.01
            )


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    size, layers, width, batch = (
        (224, 12, 768, 48) if arguments.full else (64, 2, 128, 4)
    )
    batches = Batches(arguments.steps, arguments.batch or batch, size, arguments.seed)
    student = VisionTransformer(size, layers, width).cuda()
    teacher = Teacher(student)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-4)

    for step, images in enumerate(batches):
        with torch.autocast("cuda", torch.bfloat16, enabled=arguments.amp):
            wanted = teacher.score(images)
            scores = student(images + 0.1 * torch.randn_like(images))
            torch.cuda.current_stream().wait_stream(teacher.stream)
            wanted.record_stream(torch.cuda.current_stream())
            loss = F.mse_loss(scores, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        teacher.follow()
        print(f"step {step} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
