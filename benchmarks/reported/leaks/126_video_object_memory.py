# kind: the video predictor keeps the memory features of all past frames although attention looks at the last few only; from facebookresearch/sam2 issues 571 and 196
from collections import OrderedDict

import torch
from torch import nn
import torch.nn.functional as F


class ImageEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, dim, 4, 4), nn.GELU(), nn.Conv2d(dim, dim, 3, padding=1))

    def forward(self, x):
        return self.body(x)


class VideoPredictor(nn.Module):
    def __init__(self, dim=32, num_maskmem=5):
        super().__init__()
        self.num_maskmem = num_maskmem
        self.encoder = ImageEncoder(dim)
        self.memory_encoder = nn.Conv2d(dim + 1, dim, 1)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.mask_head = nn.Conv2d(dim, 1, 1)

    def init_state(self):
        return {"output_dict": {"cond_frame_outputs": OrderedDict(), "non_cond_frame_outputs": OrderedDict()}}

    def _memories(self, output_dict, frame_idx):
        bank = list(output_dict["cond_frame_outputs"].values())
        for back in range(1, self.num_maskmem):
            out = output_dict["non_cond_frame_outputs"].get(frame_idx - back)
            if out is not None:
                bank.append(out)
        return bank

    def forward(self, state, frame, frame_idx, mask=None):
        output_dict = state["output_dict"]
        feats = self.encoder(frame)
        memories = self._memories(output_dict, frame_idx)
        if memories:
            q = feats.flatten(2).transpose(1, 2)
            kv = torch.cat([F.avg_pool2d(m["maskmem_features"], 4).flatten(2).transpose(1, 2) for m in memories], 1)
            q = q + self.attn(q, kv, kv, need_weights=False)[0]
            feats = q.transpose(1, 2).reshape_as(feats)
        logits = self.mask_head(feats) if mask is None else mask
        maskmem = self.memory_encoder(torch.cat([feats, torch.sigmoid(logits)], 1))
        current_out = {"maskmem_features": maskmem, "pred_masks": logits}
        if mask is not None:
            output_dict["cond_frame_outputs"][frame_idx] = current_out
        else:
            output_dict["non_cond_frame_outputs"][frame_idx] = current_out  # LEAK
        return logits

    @torch.inference_mode()
    def propagate_in_video(self, state, frames, first_mask):
        for idx, frame in enumerate(frames):
            logits = self(state, frame, idx, first_mask if idx == 0 else None)
            yield idx, (logits > 0).float().mean().item()


def camera(n):
    base = torch.rand(1, 3, 96, 96)
    for i in range(n):
        yield base.roll(i, dims=-1).cuda()


torch.manual_seed(0)
predictor = VideoPredictor().cuda().eval()
inference_state = predictor.init_state()
prompt = torch.randn(1, 1, 24, 24, device="cuda")
areas = {}
for frame_idx, area in predictor.propagate_in_video(inference_state, camera(140), prompt):
    areas[frame_idx] = area
print(f"mean area {sum(areas.values()) / len(areas):.3f}")
