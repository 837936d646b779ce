# CARD: 24GiB
# KNOBS: MAX_PIXELS=12845056 ATTENTION=eager
# EXPERT: a 1700x2200 page becomes 122 x 158 = 19276 patches in the vision tower, and plain attention makes 16 x 19276 x 19276 scores (11 GiB in fp16, twice that for the fp32 softmax); max_pixels (1280*28*28), flash or memory-efficient attention; the 2B weights are only 4 GB
# after QwenLM/Qwen3-VL issue 541 (https://github.com/QwenLM/Qwen3-VL/issues/541)
import math
import os

import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.vision_utils import get_vision_position_ids

import knobs

MAX_PIXELS = int(os.environ.get("MAX_PIXELS", 12845056))
MIN_PIXELS = 4 * 28 * 28
ATTENTION = os.environ.get("ATTENTION", "eager")
MAX_TOKENS = 16


def load():
    config = Qwen2VLConfig(
        text_config=dict(vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
                         num_attention_heads=12, num_key_value_heads=2, max_position_embeddings=32768,
                         rope_parameters=dict(rope_type="default", mrope_section=[16, 24, 24], rope_theta=1000000.0),
                         tie_word_embeddings=True),
        vision_config=dict(depth=32, embed_dim=1280, num_heads=16, hidden_size=1536, mlp_ratio=4, patch_size=14),
        tie_word_embeddings=True)
    config._attn_implementation = ATTENTION
    config.vision_config._attn_implementation = ATTENTION
    config.text_config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = Qwen2VLForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
    return model.half().eval()


def smart_resize(height, width, factor=28):
    h, w = round(height / factor) * factor, round(width / factor) * factor
    if h * w > MAX_PIXELS:
        beta = math.sqrt((height * width) / MAX_PIXELS)
        h, w = math.floor(height / beta / factor) * factor, math.floor(width / beta / factor) * factor
    elif h * w < MIN_PIXELS:
        beta = math.sqrt(MIN_PIXELS / (height * width))
        h, w = math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
    return h, w


def processor(height, width):
    """pixel_values as Qwen2VLImageProcessor makes them, and the grid"""
    h, w = smart_resize(height, width)
    grid = torch.tensor([[1, h // 14, w // 14]])
    return torch.rand(int(grid.prod()), 3 * 2 * 14 * 14), grid


def position_ids(n_before, grid, n_after):
    t, h, w = grid[0].tolist()
    h, w = h // 2, w // 2
    before = torch.arange(n_before).expand(3, -1)
    image = torch.stack([torch.zeros(h * w).long(), torch.arange(h).repeat_interleave(w), torch.arange(w).repeat(h)])
    after = torch.arange(n_after).expand(3, -1) + n_before + max(h, w)
    return torch.cat([before, image + n_before, after], 1)[:, None]


@torch.no_grad()
def extract(model, height, width):
    pixel_values, grid = processor(height, width)
    print("grid", grid.tolist(), "patches", len(pixel_values))
    visual = model.model.visual
    vision_pos = get_vision_position_ids(grid, visual.spatial_merge_size).cuda()
    image = visual(pixel_values.half().cuda(), grid_thw=grid, position_ids=vision_pos)
    if not torch.is_tensor(image):
        image = image.pooler_output if getattr(image, "pooler_output", None) is not None else image[0]
    embed = model.get_input_embeddings()
    before = embed(torch.randint(0, 150000, (1, 15)).cuda())
    after = embed(torch.randint(0, 150000, (1, 420)).cuda())
    x = torch.cat([before, image[None].to(before.dtype), after], 1)
    pos = position_ids(15, grid, 420).cuda()
    out = model(inputs_embeds=x, position_ids=pos, use_cache=True, logits_to_keep=1)
    ids = []
    past, p = out.past_key_values, pos[:, :, -1:]
    for _ in range(MAX_TOKENS):
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        ids.append(token)
        p = p + 1
        out = model(inputs_embeds=embed(token), position_ids=p, past_key_values=past, use_cache=True)
    return torch.cat(ids, 1)


def main():
    model = load()
    knobs.apply(model)
    print("weights: MiB", torch.cuda.memory_allocated() // 2 ** 20)
    for page in range(2):
        ids = extract(model, 2200, 1700)
        print("page", page, "tokens", ids.shape[1])
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
