"""The models that offload.py trains: what makes each, and its batches.

A model gives a loss and has `blocks`, the modules that checkpointing recomputes. Its
inputs hold zeros: on the simulated card nothing depends on values.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

EXAMPLES = Path(__file__).parent.parent / "examples"
TOKENS = 1024  # in a sequence
CLASSES = 1000
WIDTH = 8192  # of the MLP
LORA_ON = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

Batch = tuple[torch.Tensor, ...]


class Bottleneck(nn.Module):
    """A residual block of ResNet-50."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.convolve = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.convolve(x) + self.shortcut(x))


class Classifier(nn.Module):
    """Blocks one after another, then classes."""

    def __init__(self, first: nn.Module, blocks: list[nn.Module], head: nn.Module):
        super().__init__()
        self.first, self.blocks, self.head = first, nn.ModuleList(blocks), head

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), targets)


class Library(nn.Module):
    """A model of a library, with the loss that it is trained with."""

    def __init__(
        self,
        model: nn.Module,
        blocks: Iterable[nn.Module],
        loss: Callable[..., torch.Tensor],
    ) -> None:
        super().__init__()
        self.model, self.blocks, self.loss = model, list(blocks), loss

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model, *batch)


def resnet() -> nn.Module:
    first = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )
    blocks: list[nn.Module] = []
    channels = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(count):
            stride = 2 if i == 0 and width > 64 else 1
            blocks.append(Bottleneck(channels, width, stride))
            channels = 4 * width
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )
    return Classifier(first, blocks, head)


def mlp() -> nn.Module:
    """Parameters that weigh more than activations."""
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)]
    return Classifier(nn.Identity(), list(blocks), nn.Linear(WIDTH, CLASSES))


def gpt() -> nn.Module:
    example = runpy.run_path(str(EXAMPLES / "train_gpt.py"))
    chosen = sys.argv
    sys.argv = chosen[:1]
    try:
        arguments = example["parse_arguments"]()
    finally:
        sys.argv = chosen
    model: nn.Module = example["GPT"](arguments)
    return model


def llama() -> nn.Module:
    """A Llama of 1.1 B parameters in bfloat16, of TinyLlama's shape."""
    import transformers as hf

    config = hf.LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        use_cache=False,
    )
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return Library(model, model.model.layers, _language_loss)


def lora() -> nn.Module:
    """The same, of which only adapters of rank 16 are trained."""
    import peft

    model = llama()
    config = peft.LoraConfig(r=16, target_modules=list(LORA_ON))
    model.model = peft.get_peft_model(model.model, config)
    return model


def _language_loss(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor):
    logits = model(input_ids=tokens).logits
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def unet() -> nn.Module:
    """The U-Net of DDPM for pictures of 256 x 256, 114 M parameters."""
    import diffusers
    from diffusers.models.attention_processor import Attention
    from diffusers.models.resnet import ResnetBlock2D

    plain, attends = ["DownBlock2D"], ["AttnDownBlock2D"]
    model = diffusers.UNet2DModel(
        sample_size=256,
        block_out_channels=(128, 128, 256, 256, 512, 512),
        down_block_types=(*(4 * plain), *attends, *plain),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", *(4 * ["UpBlock2D"])),
    )
    blocks = [m for m in model.modules() if isinstance(m, (ResnetBlock2D, Attention))]
    return Library(model, blocks, _denoising_loss)


def _denoising_loss(model: nn.Module, noisy: torch.Tensor, noise: torch.Tensor):
    times = torch.zeros(len(noisy), dtype=torch.long, device=noisy.device)
    return F.mse_loss(model(noisy, times).sample, noise)


def vit() -> nn.Module:
    """ViT-L with patches of 16 x 16."""
    import torchvision

    model = torchvision.models.vit_l_16()
    return Library(model, model.encoder.layers, _class_loss)


def _class_loss(model: nn.Module, pictures: torch.Tensor, targets: torch.Tensor):
    return F.cross_entropy(model(pictures), targets)


def _zeros(*shape: int, **options: Any) -> torch.Tensor:
    return torch.zeros(*shape, device="cuda", **options)


def texts(size: int) -> Batch:
    tokens = _zeros(size, TOKENS + 1, dtype=torch.long)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def pictures(size: int) -> Batch:
    return _zeros(size, 3, 224, 224), _zeros(size, dtype=torch.long)


def vectors(size: int) -> Batch:
    return _zeros(size, WIDTH), _zeros(size, dtype=torch.long)


def noise(size: int) -> Batch:
    return _zeros(size, 3, 256, 256), _zeros(size, 3, 256, 256)


@dataclass(frozen=True)
class Model:
    """How to make a model, and a batch of a size for it."""

    make: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    batch_size: int


MODELS = {
    "gpt": Model(gpt, texts, 16),
    "cnn": Model(resnet, pictures, 128),
    "mlp": Model(mlp, vectors, 24),
    "llama": Model(llama, texts, 4),
    "lora": Model(lora, texts, 4),
    "unet": Model(unet, noise, 8),
    "vit": Model(vit, pictures, 48),
}
