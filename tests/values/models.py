"""Small models and a training loop that run the same on any device."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rare_models import Cells, GraphNetwork, Jagged, Lstm, SkipGram, nodes
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

Phase = Callable[[str], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def no_phase(_: str) -> Iterator[None]:
    """Does nothing around a phase of training."""
    yield


# ---- models


class Dropout(nn.Dropout):
    """As a GPU computes it: the CPU's own rounds the factor to half precision."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cpu and self.p > 0.0:
            return torch.native_dropout(x, self.p, self.training)[0]
        return super().forward(x)


class Block(nn.Module):
    """Causal attention and an MLP; `groups` heads of key and value serve all."""

    def __init__(
        self, width: int, heads: int, dropout: float, inner_dropout: float, groups: int
    ) -> None:
        super().__init__()
        self.head_width = width // heads
        self.widths = width, groups * self.head_width, groups * self.head_width
        self.inner_dropout = inner_dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, sum(self.widths))
        self.mix = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, -1, self.head_width).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(self.widths, dim=2)
        )
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
            dropout_p=self.inner_dropout if self.training else 0.0,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        x = x + self.mix(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm_2(x))


class Gpt(nn.Module):
    """Tied embeddings around a few blocks; gives the loss of predicting its input."""

    def __init__(
        self,
        dropout: float = 0.0,
        recompute: str = "",
        inner_dropout: float = 0.0,
        groups: int = 4,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.tokens = nn.Embedding(211, 64)
        self.positions = nn.Embedding(32, 64)
        blocks = [Block(64, 4, dropout, inner_dropout, groups) for _ in range(3)]
        self.blocks = nn.ModuleList(blocks[:1] * 3 if shared else blocks)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 211, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            if self.recompute and self.training:
                reentrant = self.recompute == "reentrant"
                x = checkpoint(block, x, use_reentrant=reentrant)
            else:
                x = block(x)
        scores = self.head(self.norm(x))[:, :-1]
        return F.cross_entropy(scores.reshape(-1, 211), tokens[:, 1:].reshape(-1))


class Residual(nn.Module):
    """Two convolutions with BatchNorm beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class Cnn(nn.Module):
    """A ResNet-like classifier; gives the loss for the labels that follow the image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layers = nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.stem(images)), 2)
        labels = torch.arange(len(images), device=images.device) % 10
        return F.cross_entropy(self.head(self.layers(x).mean((2, 3))), labels)


class UNet(nn.Module):
    """Predicts the noise in an image, as diffusion models do."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.enter = nn.Conv2d(3, 32, 3, padding=1)
        self.down = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU())
        self.bottom = nn.Conv2d(64, 64, 3, padding=1)
        self.up = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.leave = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(images)
        steps = torch.rand(len(images), 1, device=images.device)
        waves = torch.cat([(steps * 2**i).sin() for i in range(16)], 1)
        x = self.enter(images * steps[:, :, None, None] + noise)
        x = x + self.time(waves)[:, :, None, None]
        y = self.up(
            F.interpolate(self.bottom(self.middle(self.down(x))), scale_factor=1)
        )
        return F.mse_loss(self.leave(torch.cat([x, y], 1)), noise)


class Llama(nn.Module):
    """A model of Hugging Face's transformers, built from a configuration."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=211,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=64,
            )
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, labels=tokens).loss


def tokens(batch: int = 8) -> torch.Tensor:
    return torch.randint(211, (batch, 32))


def images(batch: int = 8) -> torch.Tensor:
    return torch.randn(batch, 3, 16, 16)


# ---- training


@dataclass(frozen=True)
class Program:
    """What is trained, and how."""

    model: Callable[[], nn.Module]
    batch: Callable[[], torch.Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    accumulate: int = 1
    clip: bool = False
    evaluate: bool = False
    keep_graph: bool = False
    closure: bool = False
    in_backward: bool = False
    workers: int = 0
    drops_in_cudnn: bool = False
    cudnn_since: tuple[int, int] = (2, 0)  # before, PyTorch computes it otherwise
    autocast: torch.dtype | None = None
    scale: float = 2.0**16
    options: dict[str, Any] = field(default_factory=dict)


def loader(batches: list[torch.Tensor], workers: int) -> DataLoader:
    """Gives the batches from other processes, in pinned memory where there is a GPU."""
    pinned = torch.cuda.is_available()
    return DataLoader(batches, batch_size=None, num_workers=workers, pin_memory=pinned)


def train(
    program: Program, device: str, steps: int = 3, phase: Phase = no_phase
) -> list[torch.Tensor]:
    """Losses of all steps, then parameters and buffers, on the CPU.

    Args:
        program: What is trained.
        device: Where.
        steps: How often.
        phase: A context around forward, backward, optimizer and evaluate.
    """

    def autocast() -> torch.autocast:
        on = program.autocast is not None
        return torch.autocast(device, program.autocast, enabled=on)

    torch.manual_seed(1)
    model = program.model().to(program.dtype).to(device)
    if program.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = program.optimizer(model.parameters(), lr=1e-3, **program.options)
    scales = program.autocast == torch.float16
    scaler = torch.amp.GradScaler(device, program.scale, enabled=scales)
    batches = [program.batch() for _ in range(steps * program.accumulate)]
    source = iter(loader(batches, program.workers) if program.workers else batches)
    torch.manual_seed(2)  # the batches were drawn on the CPU, the rest is on the device
    losses: list[torch.Tensor] = []

    def compute(inputs: torch.Tensor) -> torch.Tensor:
        with phase("forward"), autocast():
            loss = model(inputs) / program.accumulate
        with phase("backward"):
            scaler.scale(loss).backward(retain_graph=program.keep_graph)
        losses.append(loss.detach().cpu())
        return loss

    def compute_anew(inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        return compute(inputs)

    parts = [[p] for p in model.parameters()] if program.in_backward else []
    each = {part[0]: program.optimizer(part, lr=1e-3) for part in parts}

    def update(parameter: nn.Parameter) -> None:
        each[parameter].step()
        each[parameter].zero_grad()

    hooks = [p.register_post_accumulate_grad_hook(update) for p in each]
    for _ in range(steps):
        for _ in range(program.accumulate):
            inputs = next(source).to(device, non_blocking=True)
            if inputs.is_floating_point():
                inputs = inputs.to(program.dtype)
            if program.channels_last:
                inputs = inputs.to(memory_format=torch.channels_last)
            if program.closure:
                optimizer.step(functools.partial(compute_anew, inputs))
            else:
                compute(inputs)
        if program.closure or program.in_backward:
            continue
        if program.clip:
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            losses.append(norm.detach().cpu())
        with phase("optimizer"):
            scaler.step(optimizer)
            scaler.update()
        if scales:
            losses.append(torch.tensor(scaler.get_scale()))
        optimizer.zero_grad(set_to_none=True)
        if program.evaluate:
            model.eval()
            with phase("evaluate"), autocast(), torch.no_grad():
                losses.append(model(batches[0].to(device)).cpu())
            model.train()
    for hook in hooks:  # else autograd holds them for ever
        hook.remove()
    return losses + [value.cpu() for value in model.state_dict().values()]


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def lbfgs(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=lr, max_iter=4, history_size=3)


PROGRAMS = {
    "gpt": Program(Gpt, tokens),
    "gpt, fused": Program(Gpt, tokens, options={"fused": True}),
    "gpt, one by one": Program(Gpt, tokens, options={"foreach": False}),
    "gpt, sgd, accumulated, clipped": Program(
        Gpt, tokens, sgd, accumulate=3, clip=True
    ),
    "gpt, dropout": Program(lambda: Gpt(dropout=0.1), tokens),
    "gpt, checkpointed": Program(lambda: Gpt(0.1, "hooks"), tokens),
    "gpt, checkpointed, reentrant": Program(lambda: Gpt(0.1, "reentrant"), tokens),
    "gpt, bfloat16": Program(Gpt, tokens, dtype=torch.bfloat16),
    "gpt, evaluated, graph kept": Program(Gpt, tokens, evaluate=True, keep_graph=True),
    "gpt, in a closure": Program(Gpt, tokens, closure=True),
    "gpt, stepped in backward": Program(Gpt, tokens, in_backward=True),
    "gpt, lbfgs": Program(Gpt, tokens, lbfgs, closure=True),
    "cnn": Program(Cnn, images, sgd, evaluate=True),
    "cnn, channels last": Program(Cnn, images, channels_last=True),
    "u-net": Program(UNet, images),
    "cnn, loaded by workers": Program(Cnn, images, workers=2),
    "gpt, dropout of attention": Program(
        lambda: Gpt(inner_dropout=0.2), tokens, evaluate=True
    ),
    "gpt, dropout of attention, checkpointed": Program(
        lambda: Gpt(0.1, "hooks", 0.2), tokens, clip=True
    ),
    "gpt, grouped queries, bfloat16": Program(
        lambda: Gpt(groups=2), tokens, dtype=torch.bfloat16
    ),
    "gpt, grouped queries, dropout of attention": Program(
        lambda: Gpt(inner_dropout=0.2, groups=1), tokens
    ),
    "gpt, autocast": Program(Gpt, tokens, autocast=torch.bfloat16, evaluate=True),
    "gpt, autocast, fused": Program(
        Gpt, tokens, autocast=torch.bfloat16, options={"fused": True}
    ),
    "gpt, autocast, layers shared": Program(
        lambda: Gpt(shared=True), tokens, autocast=torch.bfloat16, accumulate=2
    ),
    "gpt, autocast, dropout, checkpointed": Program(
        lambda: Gpt(0.1, "hooks", 0.1), tokens, autocast=torch.bfloat16
    ),
    "gpt, autocast, checkpointed, reentrant": Program(
        lambda: Gpt(0.1, "reentrant"), tokens, autocast=torch.float16
    ),
    "gpt, scaled": Program(
        Gpt, tokens, autocast=torch.float16, clip=True, evaluate=True
    ),
    "gpt, scaled, fused": Program(
        Gpt, tokens, autocast=torch.float16, options={"fused": True}
    ),
    "gpt, scaled, overflowing": Program(
        Gpt, tokens, autocast=torch.float16, scale=2.0**18
    ),
    "cnn, autocast": Program(Cnn, images, autocast=torch.bfloat16),
    "cnn, scaled, channels last": Program(
        Cnn, images, sgd, autocast=torch.float16, channels_last=True, evaluate=True
    ),
    "lstm": Program(Lstm, tokens, evaluate=True, drops_in_cudnn=True),
    "gru, bfloat16": Program(
        lambda: Lstm(nn.GRU),
        tokens,
        dtype=torch.bfloat16,
        drops_in_cudnn=True,
        cudnn_since=(2, 11),
    ),
    "cells": Program(Cells, tokens, evaluate=True),
    "jagged": Program(Jagged, tokens, evaluate=True),
    "jagged, bfloat16": Program(Jagged, tokens, dtype=torch.bfloat16),
    "skip-gram": Program(SkipGram, tokens, torch.optim.SparseAdam, evaluate=True),
    "graph": Program(GraphNetwork, nodes, evaluate=True),
    "llama of transformers": Program(Llama, tokens, clip=True),
}


def _case(name: str) -> Any:
    """A test's parameter, skipped where the last bits are not the CPU's."""
    since = PROGRAMS[name].cudnn_since
    here = tuple(map(int, torch.__version__.split(".")[:2]))
    why = f"PyTorch has it from cuDNN from {since[0]}.{since[1]} on, and rounds less"
    return pytest.param(name, marks=pytest.mark.skipif(here < since, reason=why))


CASES = [_case(name) for name in PROGRAMS]
