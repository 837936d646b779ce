"""Pictures, films and graphs: timm, torchvision, transformers, torch_geometric."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 12


def images(rows: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, 3, side, side, device="cuda")
    return x, torch.randint(1000, (rows,), device="cuda")


# ---- timm


def convnext_ema() -> None:
    import timm
    from timm.utils import ModelEmaV3

    model = timm.create_model("convnext_small", drop_path_rate=0.1).cuda()
    mean = ModelEmaV3(model, decay=0.9998)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for _ in range(STEPS):
        x, y = images(64, 224)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean.update(model)


def efficientnet_rmsprop() -> None:
    import timm
    from timm.optim import create_optimizer_v2

    model = timm.create_model("efficientnet_b3").cuda()
    optimizer = create_optimizer_v2(model, opt="rmsproptf", lr=1e-3)
    for _ in range(STEPS):
        x, y = images(64, 300)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def swin() -> None:
    import timm

    model = timm.create_model("swin_tiny_patch4_window7_224").cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for _ in range(STEPS):
        x, y = images(64, 224)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def vit_accumulated() -> None:
    """A larger ViT; two batches a step."""
    import timm

    model = timm.create_model("vit_large_patch16_224").cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        for _ in range(2):
            x, y = images(24, 224)
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def resnet_channels_last() -> None:
    """Half precision with a scaler, channels last, SGD."""
    import timm

    model = timm.create_model("resnet50").cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
    )
    scaler = torch.amp.GradScaler()
    for _ in range(STEPS):
        x, y = images(128, 224)
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def mixer_with_metrics() -> None:
    """With torchmetrics beside, and the mean loss kept on the device."""
    import timm
    from torchmetrics import MeanMetric
    from torchmetrics.classification import MulticlassAccuracy

    model = timm.create_model("mixer_b16_224").cuda()
    accuracy = MulticlassAccuracy(1000, validate_args=False).cuda()
    mean = MeanMetric(nan_strategy="disable").cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, y = images(64, 224)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean.update(loss.detach())
        accuracy.update(logits.detach(), y)


# ---- torchvision


def scenes(count: int, sides: list[tuple[int, int]]):
    """Pictures of sizes of their own, with what is to be found in each."""
    pictures, targets = [], []
    for h, w in random.choices(sides, k=count):
        found = random.randint(2, 8)
        corner = torch.rand(found, 2) * 100
        boxes = torch.cat([corner, corner + 50 + torch.rand(found, 2) * 100], 1)
        target = {
            "boxes": boxes.cuda(),
            "labels": torch.randint(1, 91, (found,)).cuda(),
            "masks": torch.zeros(found, h, w, dtype=torch.uint8).cuda(),
        }
        pictures.append(torch.rand(3, h, w).cuda())
        targets.append(target)
    return pictures, targets


SIDES = [(480, 640), (640, 480), (426, 640), (512, 512)]


def mask_rcnn() -> None:
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    random.seed(0)
    model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).cuda().train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.005, momentum=0.9, weight_decay=5e-4)
    for _ in range(16):
        pictures, targets = scenes(4, SIDES)
        losses = model(pictures, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def retinanet() -> None:
    from torchvision.models.detection import retinanet_resnet50_fpn

    random.seed(0)
    model = retinanet_resnet50_fpn(weights=None, weights_backbone=None).cuda().train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
    for _ in range(16):
        pictures, targets = scenes(4, SIDES)
        loss = sum(model(pictures, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def deeplab() -> None:
    from torchvision.models.segmentation import deeplabv3_resnet50

    model = deeplabv3_resnet50(weights_backbone=None, aux_loss=True).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(STEPS):
        x = torch.randn(8, 3, 480, 480, device="cuda")
        y = torch.randint(21, (8, 480, 480), device="cuda")
        out = model(x)
        loss = F.cross_entropy(out["out"], y) + 0.5 * F.cross_entropy(out["aux"], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def video_r3d() -> None:
    from torchvision.models.video import r3d_18

    model = r3d_18(weights=None).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(STEPS):
        x = torch.randn(24, 3, 16, 112, 112, device="cuda")
        y = torch.randint(400, (24,), device="cuda")
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def densenet() -> None:
    from torchvision.models import densenet121

    model = densenet121(weights=None).cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, y = images(64, 224)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# ---- transformers


def segformer() -> None:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(num_labels=150, depths=[3, 4, 6, 3])
    model = SegformerForSemanticSegmentation(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5)
    for _ in range(STEPS):
        x = torch.randn(8, 3, 512, 512, device="cuda")
        y = torch.randint(150, (8, 512, 512), device="cuda")
        loss = model(pixel_values=x, labels=y).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# ---- torch_geometric


def gcn_whole_graph() -> None:
    """All nodes of one graph at once."""
    from torch_geometric.nn import GCNConv

    class Gcn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [128, 256, 256, 256, 40]
            self.convs = nn.ModuleList(
                GCNConv(a, b) for a, b in itertools.pairwise(sizes)
            )
            self.norms = nn.ModuleList(nn.BatchNorm1d(b) for b in sizes[1:-1])

        def forward(self, x, edges):
            for conv, norm in zip(self.convs[:-1], self.norms, strict=True):
                x = F.dropout(norm(conv(x, edges)).relu(), 0.5, self.training)
            return self.convs[-1](x, edges)

    model = Gcn().cuda()
    x = torch.randn(170_000, 128).cuda()
    edges = torch.randint(170_000, (2, 1_200_000)).cuda()
    y = torch.randint(40, (170_000,)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(14):
        loss = F.cross_entropy(model(x, edges), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def gat_sampled() -> None:
    """Parts of a large graph, each of another size."""
    from torch_geometric.nn import GATConv

    class Gat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(
                [
                    GATConv(128, 64, heads=8),
                    GATConv(512, 64, heads=8),
                    GATConv(512, 47, heads=1),
                ]
            )

        def forward(self, x, edges):
            for conv in self.convs[:-1]:
                x = F.dropout(F.elu(conv(x, edges)), 0.5, self.training)
            return self.convs[-1](x, edges)

    random.seed(0)
    model = Gat().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(20):
        nodes = random.randint(90_000, 110_000)
        x = torch.randn(nodes, 128).cuda()
        edges = torch.randint(nodes, (2, 8 * nodes)).cuda()
        out = model(x, edges)[:1024]
        loss = F.cross_entropy(out, torch.randint(47, (1024,)).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def gin_batches() -> Iterator[str]:
    """Small graphs joined to batches, with a pool at the end."""
    from torch_geometric.nn import GINEConv, global_add_pool

    def mlp(width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(width, 2 * width),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
        )

    class Gin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.atoms = nn.Embedding(120, 300)
            self.bonds = nn.Embedding(12, 300)
            self.convs = nn.ModuleList(GINEConv(mlp(300)) for _ in range(5))
            self.head = nn.Linear(300, 1)

        def forward(self, atoms, edges, bonds, batch):
            x, e = self.atoms(atoms), self.bonds(bonds)
            for conv in self.convs:
                x = F.relu(conv(x, edges, e)) + x
            return self.head(global_add_pool(x, batch, size=4096))

    random.seed(0)
    model = Gin().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(16):
        nodes = 4096 * 26 + random.randint(-2000, 2000)
        edges = torch.randint(nodes, (2, 2 * nodes)).cuda()
        out = model(
            torch.randint(120, (nodes,)).cuda(),
            edges,
            torch.randint(12, (2 * nodes,)).cuda(),
            torch.randint(4096, (nodes,)).sort().values.cuda(),
        )
        loss = F.l1_loss(out, torch.randn(4096, 1).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield ""


PROGRAMS = (
    *(convnext_ema, efficientnet_rmsprop, swin, vit_accumulated),
    *(resnet_channels_last, mixer_with_metrics, mask_rcnn, retinanet, deeplab),
    *(video_r3d, densenet, segformer, gcn_whole_graph, gat_sampled, gin_batches),
)
