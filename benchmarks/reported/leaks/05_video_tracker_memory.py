# kind: per-frame memories of a video predictor stay in the inference state; from SAM 2 issues on long videos
from collections import OrderedDict
import torch
import torch.nn as nn
import torch.nn.functional as F


class VideoPredictor(nn.Module):
    def __init__(self, dim=64, num_maskmem=7):
        super().__init__()
        self.num_maskmem = num_maskmem
        self.image_encoder = nn.Conv2d(3, dim, 4, stride=4)
        self.memory_encoder = nn.Conv2d(dim + 1, dim, 3, padding=1)
        self.q = nn.Linear(dim, dim)
        self.mask_decoder = nn.Conv2d(dim, 1, 1)

    def init_state(self, num_frames):
        return {
            "num_frames": num_frames,
            "cond_frame_outputs": OrderedDict(),
            "non_cond_frame_outputs": OrderedDict(),
        }

    def _gather_memory(self, state, frame_idx):
        mems = [o["maskmem"] for o in state["cond_frame_outputs"].values()]
        for k in range(1, self.num_maskmem):
            out = state["non_cond_frame_outputs"].get(frame_idx - k)
            if out is not None:
                mems.append(out["maskmem"])
        return mems

    def track_frame(self, state, frame_idx, frame, prompt_mask=None):
        feat = self.image_encoder(frame)
        mems = self._gather_memory(state, frame_idx)
        if mems:
            summary = torch.stack([m.mean(dim=(2, 3)) for m in mems], dim=1)
            att = torch.softmax(self.q(feat.mean(dim=(2, 3)))[:, None] @ summary.transpose(1, 2), dim=-1)
            feat = feat + (att @ summary)[:, 0, :, None, None]
        mask = self.mask_decoder(feat) if prompt_mask is None else prompt_mask
        maskmem = self.memory_encoder(torch.cat([feat, mask.sigmoid()], dim=1))
        current = {"pred_masks": mask, "maskmem": maskmem}
        if prompt_mask is not None:
            state["cond_frame_outputs"][frame_idx] = current
        else:
            state["non_cond_frame_outputs"][frame_idx] = current  # LEAK
        return F.interpolate(mask, scale_factor=4)

    @torch.inference_mode()
    def propagate_in_video(self, state, video):
        for idx, frame in enumerate(video):
            prompt = torch.ones(1, 1, 48, 48, device=frame.device) if idx == 0 else None
            yield idx, self.track_frame(state, idx, frame, prompt)


def read_video(n, device):
    for _ in range(n):
        yield torch.rand(1, 3, 192, 192).to(device)


def main():
    device = torch.device("cuda:0")
    predictor = VideoPredictor().to(device).eval()
    state = predictor.init_state(num_frames=140)
    areas = []
    for idx, masks in predictor.propagate_in_video(state, read_video(140, device)):
        areas.append((masks > 0).float().mean().item())
    print("mean object area", sum(areas) / len(areas))


main()
