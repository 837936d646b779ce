# kind: https://github.com/facebookresearch/sam2/issues/571: a video predictor's inference_state keeps the outputs of each frame
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"


class ImageEncoder(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 7, stride=4, padding=3)
        self.blocks = nn.ModuleList(nn.Conv2d(dim, dim, 3, padding=1, groups=dim) for _ in range(4))
        self.mix = nn.ModuleList(nn.Conv2d(dim, dim, 1) for _ in range(4))

    def forward(self, x):
        x = self.stem(x)
        for dw, pw in zip(self.blocks, self.mix):
            x = x + F.gelu(pw(dw(x)))
        return x


class VideoPredictor(nn.Module):
    def __init__(self, dim=96, window=6):
        super().__init__()
        self.encoder = ImageEncoder(dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.mask_head = nn.Conv2d(dim, 1, 1)
        self.obj_ptr = nn.Linear(dim, 256)
        self.window = window

    def init_state(self, num_objects):
        return {
            "objects": {
                i: {"cond_frame_outputs": {}, "non_cond_frame_outputs": {}} for i in range(num_objects)
            },
            "tracking_has_started": False,
            "frames_tracked": {},
        }

    def track_step(self, feats, memory):
        b, c, h, w = feats.shape
        q = F.avg_pool2d(feats, 4).flatten(2).transpose(1, 2)
        if memory:
            kv = torch.cat([F.avg_pool2d(m["maskmem_features"].float(), 4).flatten(2).transpose(1, 2) for m in memory], 1)
            q = q + self.attn(q, kv, kv, need_weights=False)[0]
        up = F.interpolate(q.transpose(1, 2).reshape(b, c, h // 4, w // 4), size=(h, w))
        fused = feats + up
        masks = self.mask_head(fused)
        return {
            "maskmem_features": fused.to(torch.bfloat16),
            "pred_masks": masks,
            "obj_ptr": self.obj_ptr(q.mean(1)),
        }

    @torch.inference_mode()
    def propagate_in_video(self, state, frames):
        state["tracking_has_started"] = True
        for idx, frame in enumerate(frames):
            feats = self.encoder(frame)
            out_masks = []
            for obj_id, store in state["objects"].items():
                key = "cond_frame_outputs" if idx == 0 else "non_cond_frame_outputs"
                recent = [store["non_cond_frame_outputs"][j] for j in range(idx - self.window, idx) if j in store["non_cond_frame_outputs"]]
                memory = list(store["cond_frame_outputs"].values()) + recent
                current = self.track_step(feats, memory)
                store[key][idx] = current  # LEAK
                out_masks.append(current["pred_masks"])
            state["frames_tracked"][idx] = {"reverse": False}
            yield idx, torch.cat(out_masks, 1) > 0


def video(n, size=256):
    for _ in range(n):
        yield torch.rand(1, 3, size, size, device=device)


def main():
    predictor = VideoPredictor().to(device).eval()
    state = predictor.init_state(num_objects=2)
    area = 0
    for idx, masks in predictor.propagate_in_video(state, video(90)):
        area += int(masks.sum())
        if idx % 10 == 0:
            print(f"frame {idx}: {torch.cuda.memory_allocated() / 2**20:.2f} MiB, masks {area}")


if __name__ == "__main__":
    main()
