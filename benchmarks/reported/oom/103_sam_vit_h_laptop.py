# CARD: 5.25GiB
# KNOBS: SAM=vit_h ATTENTION=eager DTYPE POINTS_PER_BATCH=64 POINTS_PER_SIDE=32
# EXPERT: ViT-H's image encoder in float32 (2.4 GiB of weights) has global attention over 64x64 patches: 16 x 4096 x 4096 floats are 1 GiB, and scores, relative positions and softmax are several of them; half precision, vit_l or vit_b, fused attention; points_per_batch only matters later, in the mask decoder
# after facebookresearch/segment-anything issue 351 (https://github.com/facebookresearch/segment-anything/issues/351), the 6 GB laptop of a comment
import os

import torch
from torch.nn import functional as F
from transformers import SamConfig, SamMaskDecoderConfig, SamModel, SamPromptEncoderConfig, SamVisionConfig

import knobs

VITS = dict(
    vit_h=dict(hidden_size=1280, num_hidden_layers=32, num_attention_heads=16, global_attn_indexes=[7, 15, 23, 31], mlp_dim=5120),
    vit_l=dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, global_attn_indexes=[5, 11, 17, 23], mlp_dim=4096),
    vit_b=dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, global_attn_indexes=[2, 5, 8, 11], mlp_dim=3072))
POINTS_PER_BATCH = int(os.environ.get("POINTS_PER_BATCH", 64))
POINTS_PER_SIDE = int(os.environ.get("POINTS_PER_SIDE", 32))
H, W = 1775, 1024  # the picture


def sam_model_registry(name):
    config = SamConfig(vision_config=SamVisionConfig(**VITS[name]), prompt_encoder_config=SamPromptEncoderConfig(),
                       mask_decoder_config=SamMaskDecoderConfig(),
                       attn_implementation=os.environ.get("ATTENTION", "eager"))
    return SamModel(config)


class SamAutomaticMaskGenerator:
    def __init__(self, model, points_per_side, points_per_batch, pred_iou_thresh=0.88, stability_score_thresh=0.95):
        self.model, self.points_per_batch = model, points_per_batch
        self.iou, self.stability = pred_iou_thresh, stability_score_thresh
        xs = (torch.arange(points_per_side) + 0.5) / points_per_side
        self.grid = torch.stack(torch.meshgrid(xs, xs, indexing="xy"), -1).reshape(-1, 2)

    def set_image(self, image):
        scale = 1024 / max(image.shape[-2:])
        h, w = int(image.shape[-2] * scale + 0.5), int(image.shape[-1] * scale + 0.5)
        x = F.interpolate(image, (h, w), mode="bilinear", align_corners=False)
        x = F.pad(x, (0, 1024 - w, 0, 1024 - h))
        self.input_size = (h, w)
        self.features = self.model.get_image_embeddings(x.to(knobs.dtype()))

    def _process_batch(self, points, orig):
        scaled = points * torch.tensor([self.input_size[1], self.input_size[0]])
        out = self.model(image_embeddings=self.features, input_points=scaled[None, :, None, :].cuda().to(knobs.dtype()),
                         input_labels=torch.ones(1, len(points), 1, dtype=torch.long, device="cuda"),
                         multimask_output=True)
        masks = out.pred_masks[0]  # points, 3, 256, 256
        masks = F.interpolate(masks, (1024, 1024), mode="bilinear", align_corners=False)
        masks = masks[..., :self.input_size[0], :self.input_size[1]]
        masks = F.interpolate(masks, orig, mode="bilinear", align_corners=False).flatten(0, 1)
        ious = out.iou_scores[0].flatten()
        keep = ious.cpu() > self.iou
        inter = (masks > 1.0).sum(-1, dtype=torch.int16).sum(-1, dtype=torch.int32)
        union = (masks > -1.0).sum(-1, dtype=torch.int16).sum(-1, dtype=torch.int32)
        keep &= (inter / union).cpu() >= self.stability
        binary = masks > 0.0
        return [m.cpu() for m, k in zip(binary, keep.tolist()) if k]

    @torch.no_grad()
    def generate(self, image):
        self.set_image(image)
        print("image encoded, peak MiB", torch.cuda.max_memory_allocated() // 2 ** 20)
        found = []
        for points in self.grid.split(self.points_per_batch):
            found += self._process_batch(points, image.shape[-2:])
        return found


def main():
    sam = sam_model_registry(os.environ.get("SAM", "vit_h"))
    sam.to(device="cuda").eval()
    knobs.apply(sam)
    print("weights: MiB", torch.cuda.memory_allocated() // 2 ** 20)
    generator = SamAutomaticMaskGenerator(sam, POINTS_PER_SIDE, POINTS_PER_BATCH)
    image = torch.rand(1, 3, H, W, device="cuda")
    masks = generator.generate(image)
    print(len(masks), "masks")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
