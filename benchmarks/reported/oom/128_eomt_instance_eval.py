# CARD: 15.77GiB
# KNOBS: BATCH=4 TOP_K=100 QUERY_CHUNK=0 SCORE_SMALL EVAL_SCALE=1.0 AUTOCAST CHECKPOINT=EomtLayer
# EXPERT: training on crops fits; the evaluation resizes the 100 best mask logits to the photo (100 x 4000 x 5000 floats, 7.5 GiB), and scoring them makes a sigmoid and a product of that size, and the sum of the bool masks an int64 copy (14.9 GiB); the masks in chunks of queries (QUERY_CHUNK=10), scores at the network's size (SCORE_SMALL), fewer instances (TOP_K=25), smaller photos; not enough: AUTOCAST, BATCH, CHECKPOINT (both only training)
# after tue-mps/eomt issue 12 (https://github.com/tue-mps/eomt/issues/12: mask_logits of (100, 4000, 5000) and the mask scores' line; training with crops of 640 fits)
import os

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import EomtConfig, EomtForUniversalSegmentation

import knobs

BATCH = int(os.environ.get("BATCH", 4))
TOP_K = int(os.environ.get("TOP_K", 100))
QUERY_CHUNK = int(os.environ.get("QUERY_CHUNK", 0))
EVAL_SCALE = float(os.environ.get("EVAL_SCALE", 1.0))
SCORE_SMALL = os.environ.get("SCORE_SMALL") == "1"
SIZE, CLASSES = 640, 12
HEIGHT, WIDTH = int(4000 * EVAL_SCALE), int(5000 * EVAL_SCALE)


class Crops(Dataset):
    def __len__(self):
        return 2 * BATCH

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.rand(3, SIZE, SIZE, generator=g), torch.randint(0, CLASSES, (SIZE // 4, SIZE // 4), generator=g)


class Photos(Dataset):
    """Aerial photos at full size, with the size that the network sees."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return torch.rand(3, SIZE, SIZE), torch.tensor([HEIGHT, WIDTH])


def build_model():
    config = EomtConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=SIZE, num_queries=200,
                        num_labels=CLASSES, attn_implementation="sdpa")
    return EomtForUniversalSegmentation(config)


def train(model, loader):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with knobs.autocast():
            out = model(pixel_values=x.cuda())
            classes = out.class_queries_logits.softmax(-1)[..., :-1]
            masks = F.interpolate(out.masks_queries_logits, size=y.shape[1:], mode="bilinear").sigmoid()
            semantic = torch.einsum("bqc,bqhw->bchw", classes, masks)
            loss = F.nll_loss(semantic.clamp(min=1e-6).log().float(), y.cuda())
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.3f}")


def score(mask_logits):
    masks = mask_logits > 0
    mask_scores = (mask_logits.sigmoid().flatten(1) * masks.flatten(1)).sum(1) / (masks.flatten(1).sum(1) + 1e-6)
    return masks, mask_scores


def to_instances(class_logits, mask_logits, size):
    """The best TOP_K (query, class) pairs with their masks at the size of the photo."""
    scores = class_logits.float().softmax(-1)[:, :-1]
    top, index = scores.flatten().topk(TOP_K, sorted=False)
    labels, query = index % scores.shape[1], index // scores.shape[1]
    mask_logits = mask_logits[query]
    small_scores = score(mask_logits)[1] if SCORE_SMALL else None
    masks, mask_scores = [], []
    for part in mask_logits.split(QUERY_CHUNK or TOP_K):
        part = F.interpolate(part[None], size=size, mode="bilinear", align_corners=False)[0]
        if SCORE_SMALL:
            masks.append(part > 0)
        else:
            m, s = score(part)
            masks.append(m)
            mask_scores.append(s)
    masks = masks[0] if len(masks) == 1 else torch.cat(masks)
    mask_scores = small_scores if SCORE_SMALL else torch.cat(mask_scores)
    return {"masks": masks, "labels": labels, "scores": top * mask_scores}


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    areas = []
    for i, (x, size) in enumerate(loader):
        with knobs.autocast():
            out = model(pixel_values=x.cuda())
        for classes, masks, s in zip(out.class_queries_logits, out.masks_queries_logits, size.tolist()):
            result = to_instances(classes, masks, tuple(s))
            areas.append(torch.stack([m.sum() for m in result["masks"]]).float().cpu())
        del result
        print(f"photo {i}: {len(areas[-1])} instances")
    return torch.cat(areas)


def main():
    torch.manual_seed(0)
    model = knobs.apply(build_model().cuda())
    train(model, DataLoader(Crops(), batch_size=BATCH, shuffle=True))
    areas = evaluate(model, DataLoader(Photos(), batch_size=1))
    print("mean area", areas.mean().item())


if __name__ == "__main__":
    main()
