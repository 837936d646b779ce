"""Programs on pictures that use libraries of other hands, as their users write them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from library_loop import STEPS, Outcome, learn
from torch import nn

# ---- timm


class Pictures(torch.utils.data.Dataset):
    """Noise, as timm's loaders take pictures: bytes, as arrays."""

    def __init__(self, count: int, side: int) -> None:
        self.pictures = torch.randint(256, (count, 3, side, side), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.pictures[index].numpy(), index % 10


def timm_training(
    name: str, optimizer: str, rows: int, side: int, **options: Any
) -> Outcome:
    """timm's script in brief: its loader prefetches on a stream of its own."""
    import timm
    from timm.data import FastCollateMixup
    from timm.data.loader import PrefetchLoader
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3

    model = timm.create_model(name, num_classes=10, **options).cuda()
    average = ModelEmaV3(model, decay=0.9)
    collate = FastCollateMixup(mixup_alpha=0.4, cutmix_alpha=1.0, num_classes=10)
    loader = torch.utils.data.DataLoader(
        Pictures(rows * STEPS, side), rows, collate_fn=collate, pin_memory=True
    )
    batches = PrefetchLoader(loader, device=torch.device("cuda"), re_prob=0.5)
    optimizer = create_optimizer_v2(model, opt=optimizer, lr=1e-3, weight_decay=0.05)
    criterion, losses = SoftTargetCrossEntropy(), []
    for images, targets in batches:
        with torch.autocast("cuda", torch.bfloat16):
            loss = criterion(model(images), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
        losses.append(loss.detach())
    return Outcome(losses, model.state_dict() | average.state_dict())


def timm_vit() -> Outcome:
    # Narrow: Muon multiplies matrices with 16 bits, for which the CPU has no library.
    sizes = {"img_size": 64, "depth": 3, "embed_dim": 96}
    name = "vit_tiny_patch16_224"
    return timm_training(name, "muon", 32, 64, drop_path_rate=0.2, **sizes)


def timm_convnext() -> Outcome:
    sizes = {"depths": (1, 1, 2, 1), "dims": (16, 32, 48, 64)}
    return timm_training("convnext_atto", "lamb", 12, 64, **sizes)


# ---- diffusers


def diffusers_unet() -> Outcome:
    """Learns to take noise away, then makes pictures of noise."""
    from diffusers import DDIMScheduler, DDPMPipeline, DDPMScheduler, UNet2DModel
    from diffusers.training_utils import EMAModel

    model = UNet2DModel(
        sample_size=16,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).cuda()
    noise_scheduler = DDPMScheduler(num_train_timesteps=50)
    average = EMAModel(model.parameters(), decay=0.9)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(STEPS):
        clean = torch.randn(8, 3, 16, 16).cuda()
        noise = torch.randn_like(clean)
        times = torch.randint(50, (8,), device="cuda")
        noisy = noise_scheduler.add_noise(clean, noise, times)
        loss = F.mse_loss(model(noisy, times).sample, noise)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        losses.append(loss.detach())
    average.copy_to(model.parameters())
    pipeline = DDPMPipeline(model.eval(), DDIMScheduler(num_train_timesteps=50))
    pipeline.set_progress_bar_config(disable=True)
    pictures = pipeline(batch_size=2, num_inference_steps=3, output_type="np").images
    return Outcome([*losses, torch.from_numpy(pictures)], model.state_dict())


def diffusers_conditional() -> Outcome:
    """A latent diffusion: an autoencoder, and a U-Net that attends to a text."""
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        UNet2DConditionModel,
    )

    vae = AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
    ).cuda()
    model = UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        attention_head_dim=8,
        cross_attention_dim=24,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).cuda()
    model.enable_gradient_checkpointing()

    def loss_of(images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            latents = vae.encode(images).latent_dist.sample()
        noise, when = torch.randn_like(latents), torch.rand(len(images), device="cuda")
        mixed = torch.lerp(latents, noise, when[:, None, None, None])
        text = torch.randn(len(images), 6, 24, device="cuda")
        return F.mse_loss(model(mixed, when, text).sample, noise - latents)

    batches = (torch.randn(8, 3, 32, 32).cuda() for _ in range(STEPS))
    outcome = learn(model, batches, loss_of)
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(3, device="cuda")
    latents = torch.randn(2, 4, 16, 16, device="cuda")
    with torch.no_grad():
        for when in scheduler.timesteps:
            guess = model(latents, when, torch.zeros(2, 6, 24, device="cuda")).sample
            latents = scheduler.step(guess, when, latents).prev_sample
        pictures = vae.decode(latents).sample
    return Outcome([*outcome.losses, pictures], outcome.learned)


# ---- torchvision


def detection() -> Outcome:
    """Faster R-CNN, on pictures and numbers of boxes of all sizes."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.rpn import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    layers = [nn.Conv2d(a, b, 3, 2, 1) for a, b in ((3, 16), (16, 32), (32, 32))]
    backbone: Any = nn.Sequential(
        *(nn.Sequential(x, nn.BatchNorm2d(x.out_channels), nn.ReLU()) for x in layers)
    )
    backbone.out_channels = 32
    model = FasterRCNN(
        backbone,
        num_classes=4,
        rpn_anchor_generator=AnchorGenerator(((8, 16, 32),), ((0.5, 1.0, 2.0),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 5, 2),
        min_size=64,
        max_size=128,
    ).cuda()

    def batch() -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
        images, targets = [], []
        for _ in range(3):
            height, width = random.randint(48, 128), random.randint(48, 128)
            count = random.randint(1, 6)
            corner, size = torch.rand(count, 2) * 20, 8 + torch.rand(count, 2) * 20
            boxes = torch.cat([corner, corner + size], 1).cuda()
            labels = torch.randint(1, 4, (count,)).cuda()
            images.append(torch.rand(3, height, width).cuda())
            targets.append({"boxes": boxes, "labels": labels})
        return images, targets

    batches = (batch() for _ in range(STEPS))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    outcome = learn(model, batches, lambda x: sum(model(*x).values()), optimizer)
    with torch.no_grad():
        found = model.eval()(batch()[0])
    boxes = [value for image in found for value in image.values()]
    return Outcome([*outcome.losses, *boxes], outcome.learned)


class Sharpness(torch.optim.Optimizer):
    """Sharpness-aware minimization, as it goes from project to project."""

    def __init__(
        self, parameters: Any, base: torch.optim.Optimizer, rho: float
    ) -> None:
        super().__init__(parameters, {})
        self.base, self.rho = base, rho
        self.param_groups = base.param_groups

    @torch.no_grad()
    def climb(self) -> None:
        trained = [p for g in self.param_groups for p in g["params"]]
        norm = torch.stack([p.grad.norm() for p in trained]).norm()
        for p in trained:
            self.state[p]["old"] = p.data.clone()
            p.add_(p.grad * (self.rho / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()


def sharpness_aware() -> Outcome:
    from torchvision.models.resnet import BasicBlock, ResNet

    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10, width_per_group=64).cuda()
    base = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    optimizer = Sharpness(model.parameters(), base, 0.05)
    losses = []
    for _ in range(3):
        images = torch.randn(8, 3, 64, 64).cuda()
        labels = torch.randint(10, (8,)).cuda()
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.climb()
        F.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
        optimizer.step()
        losses.append(loss.detach())
    return Outcome(losses, model.state_dict())


PICTURES: dict[str, Callable[[], Outcome]] = {
    "timm, ViT": timm_vit,
    "timm, ConvNeXt": timm_convnext,
    "diffusers, pictures": diffusers_unet,
    "diffusers, latents": diffusers_conditional,
    "torchvision, detection": detection,
    "torchvision, sharpness-aware": sharpness_aware,
}
