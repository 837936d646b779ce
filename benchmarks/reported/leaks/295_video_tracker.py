# kind: facebookresearch/sam2 issue #196 / #258: long videos, inference_state keeps the memory of each frame
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, d, 7, 4, 3), nn.GELU(), nn.Conv2d(d, d, 3, 2, 1), nn.GELU(),
                                 nn.Conv2d(d, d, 3, 2, 1))

    def forward(self, x):
        return self.net(x)


class VideoPredictor(nn.Module):
    num_maskmem = 7

    def __init__(self, d=64):
        super().__init__()
        self.image_encoder = Encoder(d)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.mask_head = nn.Conv2d(d, 1, 1)
        self.mem_encoder = nn.Conv2d(d + 1, d, 3, padding=1)

    def init_state(self, n_frames, size):
        return {"num_frames": n_frames, "size": size, "output_dict": {"cond": {}, "non_cond": {}}}

    def _gather_memory(self, state, idx):
        outs = state["output_dict"]["non_cond"]
        frames = [outs[t]["maskmem_features"] for t in range(max(0, idx - self.num_maskmem), idx) if t in outs]
        return torch.cat([f.flatten(2).transpose(1, 2) for f in frames], 1) if frames else None

    def track_step(self, state, idx, frame):
        feat = self.image_encoder(frame)
        tokens = feat.flatten(2).transpose(1, 2)
        memory = self._gather_memory(state, idx)
        if memory is not None:
            tokens = tokens + self.attn(tokens, memory, memory, need_weights=False)[0]
        feat = tokens.transpose(1, 2).view_as(feat)
        low = self.mask_head(feat)
        high = F.interpolate(low, state["size"], mode="bilinear")
        mem = self.mem_encoder(torch.cat([feat, low.sigmoid()], 1))
        return {"pred_masks": low, "pred_masks_high_res": high, "maskmem_features": mem}

    @torch.inference_mode()
    def propagate_in_video(self, state, reader):
        for idx, frame in enumerate(reader):
            out = self.track_step(state, idx, frame.cuda(non_blocking=True))
            state["output_dict"]["non_cond"][idx] = out  # LEAK
            yield idx, (out["pred_masks_high_res"] > 0).cpu()


def read_video(n):
    for _ in range(n):
        yield torch.rand(1, 3, 512, 512)


predictor = VideoPredictor().cuda().eval()
state = predictor.init_state(120, (512, 512))
for idx, mask in predictor.propagate_in_video(state, read_video(120)):
    pass
print("frames", idx + 1, torch.cuda.memory_allocated() >> 20, "MiB")
