# CARD: 12GiB
# KNOBS: BATCH=1 NO_GRAD=1 SDPA=1 DTYPE=bf16 CPU_OUTPUTS=1
# EXPERT: inference without torch.no_grad keeps 12 layers' eager attention over 3000 patches; no_grad is enough by itself, one crop at a time is not
# in the manner of a Depth-Anything issue "CUDA out of memory for 770x770 crops of a panorama on a 3060"
import os

import torch
import torch.nn.functional as F
from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config


class Options:
    batch = int(os.environ.get("BATCH", 2))
    no_grad = os.environ.get("NO_GRAD") == "1"
    cpu = os.environ.get("CPU_OUTPUTS") == "1"
    dtype = torch.bfloat16 if os.environ.get("DTYPE") == "bf16" else torch.float32
    attn = "sdpa" if os.environ.get("SDPA") == "1" else "eager"


def load_model(o, crop):
    backbone = Dinov2Config(image_size=crop, patch_size=14, hidden_size=768, num_attention_heads=12,
                            num_hidden_layers=12, out_indices=[3, 6, 9, 12], reshape_hidden_states=False,
                            apply_layernorm=True)
    config = DepthAnythingConfig(backbone_config=backbone, patch_size=14, reassemble_hidden_size=768,
                                 neck_hidden_sizes=[96, 192, 384, 768], fusion_hidden_size=128)
    model = DepthAnythingForDepthEstimation(config)
    model.backbone.set_attn_implementation(o.attn)
    return model.to("cuda", o.dtype).eval()


class Panorama:
    def __init__(self, height=1540, width=6160, crop=770):
        self.crop = crop
        self.image = torch.rand(3, height, width)

    def crops(self, n):
        tiles = [self.image[:, y:y + self.crop, x:x + self.crop]
                 for y in range(0, self.image.shape[1], self.crop)
                 for x in range(0, self.image.shape[2], self.crop)]
        for i in range(0, len(tiles), n):
            yield torch.stack(tiles[i:i + n])


def estimate(o, pano):
    model = load_model(o, pano.crop)
    maps = []
    for tile in pano.crops(o.batch):
        depth = model(pixel_values=tile.to("cuda", o.dtype)).predicted_depth
        big = F.interpolate(depth[:, None].float(), scale_factor=4, mode="bicubic").detach()
        maps.append(big.cpu() if o.cpu else big)
    return torch.cat(maps)


if __name__ == "__main__":
    opts = Options()
    with torch.set_grad_enabled(not opts.no_grad):
        print(estimate(opts, Panorama()).shape)
    print("PEAK", torch.cuda.max_memory_allocated())
