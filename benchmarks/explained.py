"""Runs a training program into shortages and holds the report against the truth.

Called by test_explained.py, as a process of its own. After each shortage it looks at
the model, the optimizer, the batch and the graph of autograd itself, and says which
share of the bytes the report put into the right category, and which into none. Prints
one line of JSON.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from oomph import _C
from oomph.diagnosis import categories
from oomph.diagnosis.categories import Category
from torch import nn

FRACTIONS = [x / 100 for x in [*range(2, 12), *range(12, 60, 4)]]  # of the card


class Gpt(nn.Module):
    """A small GPT, of a block of its own."""

    class Block(nn.Module):
        """Attention and an MLP."""

        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(512) for _ in range(2))
            self.qkv, self.out = nn.Linear(512, 1536), nn.Linear(512, 512)
            self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """One block."""
            q, k, v = (
                part.view(*x.shape[:2], 8, 64).transpose(1, 2)
                for part in self.qkv(self.norms[0](x)).split(512, 2)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.norms[1](x))))

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16384, 512)
        self.blocks = nn.ModuleList(self.Block() for _ in range(6))
        self.head = nn.Linear(512, 16384, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())

    @staticmethod
    def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and the next ones."""
        x = torch.zeros(count, 512, dtype=torch.long, device="cuda")
        return x, x.clone()


class Cnn(nn.Module):
    """Convolutions, norms, ReLUs in place and not."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in (64, 64, 128, 128, 256, 256):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width)]
            layers += [nn.ReLU(inplace=True)]
            channels = width
            if width != 64:
                layers += [nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(256 * 8 * 8, 2048)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        return F.cross_entropy(self.head(self.features(x).flatten(1)), y)

    @staticmethod
    def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and classes."""
        images = torch.zeros(2 * count, 3, 128, 128, device="cuda")
        return images, torch.zeros(2 * count, dtype=torch.long, device="cuda")


class Lstm(nn.Module):
    """An LSTM written step by step, so that autograd has many small blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8192, 1024)
        self.cell = nn.Linear(2048, 4096)
        self.head = nn.Linear(1024, 8192)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        h = c = torch.zeros(x.shape[0], 1024, device=x.device)
        outputs = []
        for t in range(x.shape[1]):
            gates = self.cell(torch.cat((self.embedding(x[:, t]), h), 1))
            i, f, g, o = gates.chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return F.cross_entropy(self.head(torch.stack(outputs, 1)).flatten(0, 1), y)

    @staticmethod
    def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and the next ones."""
        x = torch.zeros(8 * count, 64, dtype=torch.long, device="cuda")
        return x, x.flatten().clone()


PROGRAMS = {"gpt": Gpt, "cnn": Cnn, "lstm": Lstm}


# ---- The truth


def address(tensor: torch.Tensor | None) -> int:
    """Of its storage; 0: there is none."""
    return (
        0
        if tensor is None or not tensor.is_cuda
        else tensor.untyped_storage().data_ptr()
    )


def tensors_in(frames: types.TracebackType | None) -> Iterator[torch.Tensor]:
    """Those that the functions of a traceback hold in variables, and in their lists."""
    while frames is not None:
        for value in list(frames.tb_frame.f_locals.values()):
            for entry in value if isinstance(value, list | tuple) else [value]:
                if isinstance(entry, torch.Tensor):
                    yield entry
        frames = frames.tb_next


def saved_by(roots: list[torch.Tensor]) -> set[int]:
    """What autograd saved and has not used yet, in all that the roots came from."""
    found: set[int] = set()
    todo = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        for name in dir(node):
            if name.startswith("_saved_"):
                found |= set(map(address, saved_tensors(node, name)))
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                todo.append(parent)
    return found - {0}


def saved_tensors(node: Any, name: str) -> list[torch.Tensor]:
    """What a node saved under a name; nothing if backward has used it."""
    try:
        value = getattr(node, name)
    except RuntimeError:  # freed
        return []
    values = value if isinstance(value, list | tuple) else [value]
    return [v for v in values if isinstance(v, torch.Tensor)]


class Truth:
    """Which category each address really has."""

    def __init__(
        self, model: nn.Module, optimizer: Any, batch: Any, workspaces: set[int]
    ) -> None:
        self.model, self.optimizer, self.batch = model, optimizer, batch
        self.workspaces = workspaces

    def of(self, error: BaseException) -> dict[int, Category]:
        """Addresses that are no temporaries; the first that holds."""
        tensors = list(tensors_in(error.__traceback__))
        state = [
            value
            for entry in self.optimizer.state.values()
            for value in entry.values()
            if isinstance(value, torch.Tensor)
        ]
        parameters = [*self.model.parameters(), *self.model.buffers()]
        return {
            **dict.fromkeys(saved_by(tensors), Category.ACTIVATION),
            **dict.fromkeys(map(address, self.batch), Category.INPUT),
            **dict.fromkeys(self.workspaces, Category.WORKSPACE),
            **dict.fromkeys(map(address, state), Category.OPTIMIZER),
            **dict.fromkeys((address(p.grad) for p in parameters), Category.GRADIENT),
            **dict.fromkeys(map(address, parameters), Category.PARAMETER),
        }


# ---- The runs

looked: list[categories.Breakdown] = []
original_look = categories.look


def look(*arguments: Any, **options: Any) -> categories.Breakdown:
    """What the report sees, kept for the comparison."""
    looked.append(original_look(*arguments, **options))
    return looked[-1]


def compare(seen: categories.Breakdown, truth: dict[int, Category]) -> dict[str, int]:
    """Bytes that are right, wrong and unknown."""
    found = {"right": 0, "wrong": 0, "unknown": 0}
    for addr, size, number in zip(
        seen.blocks.addrs, seen.blocks.sizes, seen.categories, strict=True
    ):
        category = Category(number)
        if category == Category.UNKNOWN:
            found["unknown"] += size
        right = category == truth.get(addr, Category.TEMPORARY)
        found["right" if right else "wrong"] += size
        if not right:
            name = f"{truth.get(addr, Category.TEMPORARY).name} as {category.name}"
            found[name] = found.get(name, 0) + size
    return found


def step_on(
    kind: type[nn.Module], count: int, fraction: float, workspaces: set[int]
) -> dict[str, int] | None:
    """A step: what the report of its shortage got right; None: there was none."""
    model = kind().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = kind.batch(count)
    truth = Truth(model, optimizer, batch, workspaces)
    looked.clear()
    torch.cuda.set_per_process_memory_fraction(fraction)
    try:
        loss = model(*batch)
        loss.backward()
        optimizer.step()
    except torch.OutOfMemoryError as error:
        return compare(looked[-1], truth.of(error))
    return None


def run(kind: type[nn.Module]) -> list[dict[str, int]]:
    """A step on cards of all sizes: what the report of each shortage got right."""
    results = []
    empty = {block[0] for block in _C.live_blocks(0)}
    a = torch.zeros(64, 64, device="cuda", requires_grad=True)
    F.linear(a @ a, a, a[0]).sum().backward()  # libraries have made their workspaces
    del a
    workspaces = {block[0] for block in _C.live_blocks(0)} - empty
    for fraction, count in itertools.product(FRACTIONS, (1, 16)):
        results.append(step_on(kind, count, fraction, workspaces))
        torch.cuda.set_per_process_memory_fraction(1.0)
        gc.collect()  # the traceback's frames
    return [result for result in results if result is not None]


if __name__ == "__main__":
    categories.look = look
    print(json.dumps(run(PROGRAMS[sys.argv[1]])))
