# CARD: 21.98GiB
# KNOBS: SAMPLER_LENGTHS=2,3,4,5 HEIGHT=1088 QUERIES=300 SDPA AUTOCAST CHECKPOINT=FrameModel,Bottleneck,EncoderLayer OPT FUSED
# EXPERT: clips of 4 frames fit (19.7 GiB), from epoch 150 on they have 5, and the graphs of all frames (4.6 GiB each, about half of it attention weights of 2040 tokens, half the backbone) live until the one backward; enough: SAMPLER_LENGTHS=2,3,4,4, SDPA, checkpointing a frame (CHECKPOINT=FrameModel, MOTR's --use_checkpoint) or CHECKPOINT=Bottleneck or EncoderLayer,DecoderLayer, HEIGHT=800; not enough: QUERIES=100, AUTOCAST (frozen batch norm computes in fp32), OPT, FUSED; the batch is one clip already
# after megvii-research/MOTR issue 30 (https://github.com/megvii-research/MOTR/issues/30: "I use 3090 to train this model, but when the epoch growing to 150, the GPU memory is out"; answers: frames grow from 2 to 5, change --sampler_lengths; issue 32 adds --use_checkpoint)
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torchvision.models import resnet101
from torchvision.ops import FrozenBatchNorm2d, box_convert, generalized_box_iou

import knobs

HEIGHT = int(os.environ.get("HEIGHT", 1088))
WIDTH = HEIGHT * 16 // 9 // 32 * 32
QUERIES = int(os.environ.get("QUERIES", 300))
SDPA = os.environ.get("SDPA") == "1"
LENGTHS = os.environ.get("SAMPLER_LENGTHS", "2,3,4,5")
DIM, HEADS, PEOPLE = 256, 8, 24


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.norm = nn.MultiheadAttention(DIM, HEADS, dropout=0.1, batch_first=True), nn.LayerNorm(DIM)

    def forward(self, x, q, k, v):
        return self.norm(x + self.attn(q, k, v, need_weights=not SDPA)[0])


class FFN(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, DIM))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x):
        return self.norm(x + self.net(x))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.ffn = Attention(), FFN()

    def forward(self, x, pos):
        return self.ffn(self.attn(x, x + pos, x + pos, x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.cross_attn, self.ffn = Attention(), Attention(), FFN()

    def forward(self, x, query, memory, pos):
        x = self.self_attn(x, x + query, x + query, x)
        return self.ffn(self.cross_attn(x, x + query, memory + pos, memory))


class FrameModel(nn.Module):
    """DETR for one frame, with the tracks of the frames before as additional queries."""

    def __init__(self):
        super().__init__()
        net = resnet101(weights=None, norm_layer=FrozenBatchNorm2d)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        self.stages = nn.Sequential(net.layer1, net.layer2, net.layer3, net.layer4)
        self.proj = nn.Sequential(nn.Conv2d(2048, DIM, 1), nn.GroupNorm(32, DIM))
        self.pos = nn.Parameter(torch.randn(1, (HEIGHT // 32) * (WIDTH // 32), DIM))
        self.query = nn.Embedding(QUERIES, DIM)
        self.encoder = nn.ModuleList(EncoderLayer() for _ in range(6))
        self.decoder = nn.ModuleList(DecoderLayer() for _ in range(6))
        self.cls = nn.Linear(DIM, 1)
        self.box = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, 4))

    def forward(self, frame, tracks):
        memory = self.proj(self.stages(self.stem(frame))).flatten(2).transpose(1, 2)
        for layer in self.encoder:
            memory = layer(memory, self.pos)
        query = torch.cat([self.query.weight[None], tracks], dim=1)
        x, outs = torch.zeros_like(query), []
        for layer in self.decoder:
            x = layer(x, query, memory, self.pos)
            outs.append((self.cls(x), self.box(x).sigmoid()))
        return x, outs


class MOTR(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame, self.qim = FrameModel(), nn.TransformerEncoderLayer(DIM, HEADS, 1024, batch_first=True)

    def match(self, cls, box, target):
        cost = 2 * -cls.sigmoid() + 5 * torch.cdist(box, target, p=1)
        cost = cost - 2 * generalized_box_iou(box_convert(box, "cxcywh", "xyxy"), box_convert(target, "cxcywh", "xyxy"))
        rows, cols = linear_sum_assignment(cost.cpu().numpy())
        return torch.as_tensor(rows, device=box.device), torch.as_tensor(cols, device=box.device)

    def loss(self, outs, target):
        with torch.no_grad():
            rows, cols = self.match(outs[-1][0][0].float(), outs[-1][1][0].float(), target)
        total = 0
        for cls, box in outs:
            wanted = torch.zeros_like(cls[0]).index_fill_(0, rows, 1.0)
            total = total + 2 * F.binary_cross_entropy_with_logits(cls[0], wanted, reduction="sum") / len(target)
            total = total + 5 * F.l1_loss(box[0, rows], target[cols])
        return total, rows

    def forward(self, frames, targets):
        """Collective average loss of a clip."""
        tracks, losses = frames.new_zeros(1, 0, DIM), []
        for frame, target in zip(frames, targets):
            hidden, outs = self.frame(frame[None], tracks)
            loss, rows = self.loss(outs, target)
            losses.append(loss)
            tracks = self.qim(hidden[:, rows])
        return torch.stack(losses).mean()


class DetMOTDetection:
    """Clips whose length grows with the epoch."""

    def __init__(self, args):
        self.steps, self.lengths = args.sampler_steps, [int(n) for n in args.sampler_lengths.split(",")]

    def set_epoch(self, epoch):
        self.period = sum(epoch >= s for s in self.steps)
        self.frames = self.lengths[self.period]

    def __iter__(self):
        for _ in range(2):
            yield torch.rand(self.frames, 3, HEIGHT, WIDTH), torch.rand(self.frames, PEOPLE, 4) * 0.5 + 0.25


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--start_epoch", type=int, default=148)
    parser.add_argument("--epochs", type=int, default=152)
    parser.add_argument("--sampler_steps", type=int, nargs="*", default=[50, 90, 150])
    parser.add_argument("--sampler_lengths", default=LENGTHS)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = knobs.apply(MOTR().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=1e-4)
    data = DetMOTDetection(args)
    for epoch in range(args.start_epoch, args.epochs):
        data.set_epoch(epoch)
        for frames, targets in data:
            with knobs.autocast():
                loss = model(frames.cuda(), targets.cuda())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        print(f"epoch {epoch}, {data.frames} frames, loss {loss.item():.2f}, "
              f"max mem {torch.cuda.max_memory_allocated() >> 20}", flush=True)


if __name__ == "__main__":
    main()
