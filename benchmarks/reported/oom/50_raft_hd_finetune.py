# CARD: 24GiB
# KNOBS: BATCH=1 HEIGHT=1088 WIDTH=1920 ITERS=12 AUTOCAST CHECKPOINT=ResidualBlock,UpdateBlock CHECKPOINT_PATHS=feature_encoder.* OPT FUSED
# EXPERT: the all-pairs correlation volume of 136x240 features is 4 GiB, twice (the division makes a copy) and again as gradients, one per lookup while they are added up, then the features of full-HD encoders and 12 refinements; train on half resolution or crops (368x768), or correlation on demand, or checkpoint the encoder blocks and the update block together; the batch is 1 already; fewer iterations, bf16 autocast, checkpointing only one of the two or the optimizer is not enough
# Source: princeton-vl/RAFT 180 (1440x2560 frames, out of memory in CorrBlock.corr / sqrt(dim)), 39 ("replace Ln 60 with an inplace operator"); torchvision raft_large
import os

import torch
from torchvision.models.optical_flow import raft_large

import knobs

BATCH = int(os.environ.get("BATCH", 1))
SIZE = (int(os.environ.get("HEIGHT", 1088)), int(os.environ.get("WIDTH", 1920)))
ITERS = int(os.environ.get("ITERS", 12))
NUM_STEPS = 3


def sequence_loss(flow_preds, flow_gt, valid, gamma=0.8, max_flow=400):
    n = len(flow_preds)
    mag = (flow_gt ** 2).sum(dim=1).sqrt()
    valid = ((valid >= 0.5) & (mag < max_flow)).float()
    loss = 0.0
    for i, flow in enumerate(flow_preds):
        loss = loss + gamma ** (n - i - 1) * (valid[:, None] * (flow - flow_gt).abs()).mean()
    epe = (flow_preds[-1].detach() - flow_gt).pow(2).sum(dim=1).sqrt()
    return loss, {"epe": epe.mean().item(), "1px": (epe < 1).float().mean().item()}


def fetch_dataloader(steps):
    for _ in range(steps):
        yield (torch.rand(BATCH, 3, *SIZE) * 2 - 1, torch.rand(BATCH, 3, *SIZE) * 2 - 1,
               torch.randn(BATCH, 2, *SIZE) * 10, torch.ones(BATCH, *SIZE))


def freeze_bn(model):
    for m in model.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            m.eval()


model = knobs.apply(raft_large(weights=None).cuda())
model.train()
freeze_bn(model)
print("Parameter count:", sum(p.numel() for p in model.parameters() if p.requires_grad))
optimizer = torch.optim.AdamW(model.parameters(), lr=1.25e-4, weight_decay=1e-4, eps=1e-8)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.25e-4, NUM_STEPS + 100, pct_start=0.05, cycle_momentum=False, anneal_strategy="linear")

for i, blob in enumerate(fetch_dataloader(NUM_STEPS)):
    image1, image2, flow, valid = [x.cuda() for x in blob]
    optimizer.zero_grad()
    with knobs.autocast():
        flow_predictions = model(image1, image2, num_flow_updates=ITERS)
    loss, metrics = sequence_loss([f.float() for f in flow_predictions], flow, valid)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    print(i, "loss", loss.item(), metrics)
