"""Trains a ResNet with bottleneck blocks on images made up from a seed.

A plain PyTorch script: it knows nothing of oomph. ``--full`` is ResNet-50.

    python train_resnet.py --full --amp --channels-last
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 1000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="ResNet-50, 224 pixels")
    parser.add_argument("--batch", type=int, help="images; 4, or 32 of full size")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="that load images")
    parser.add_argument("--amp", action="store_true", help="autocast to float16")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


class Images(Dataset):
    """Noise, labelled at random; the same for the same seed and index."""

    def __init__(self, count: int, size: int, seed: int) -> None:
        self.count, self.size, self.seed = count, size, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.seed + index)
        image = torch.rand(3, self.size, self.size, generator=generator)
        return image, int(torch.randint(CLASSES, (), generator=generator))


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution and a BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """Convolutions of 1, 3 and 1 pixels, added to the input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = convolution(inputs, width, 1)
        self.filter = convolution(width, width, 3, stride)
        self.expand = convolution(width, 4 * width, 1)
        same = inputs == 4 * width and stride == 1
        self.shortcut = (
            nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.reduce(x), inplace=True)
        y = F.relu(self.filter(y), inplace=True)
        return F.relu(self.expand(y) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """A stem, four stages of bottleneck blocks, and a linear head."""

    def __init__(self, width: int, stages: list[int]) -> None:
        super().__init__()
        self.stem = convolution(3, width, 7, stride=2)
        blocks, inputs = [], width
        for stage, count in enumerate(stages):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(inputs, width << stage, stride))
                inputs = 4 * width << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x), inplace=True)
        x = self.blocks(F.max_pool2d(x, 3, stride=2, padding=1))
        return self.head(x.mean((2, 3)))


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    layout = torch.channels_last if arguments.channels_last else torch.contiguous_format
    width, stages, size, batch = (
        (64, [3, 4, 6, 3], 224, 32) if arguments.full else (8, [1, 2, 1, 1], 64, 4)
    )
    batch = arguments.batch or batch
    images = Images(arguments.steps * batch, size, arguments.seed)
    loader = DataLoader(
        images, batch, num_workers=arguments.workers, pin_memory=True, drop_last=True
    )
    model = ResNet(width, stages).to("cuda", memory_format=layout)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
    )
    scaler = torch.amp.GradScaler("cuda", enabled=arguments.amp)

    for step, (inputs, labels) in enumerate(loader):
        inputs = inputs.to("cuda", non_blocking=True, memory_format=layout)
        labels = labels.to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.float16, enabled=arguments.amp):
            loss = F.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
