# kind: https://github.com/huggingface/diffusers/issues/536: prompt-to-prompt style attention maps of each image remain in the store of the processors
import torch
from diffusers import DDIMScheduler, UNet2DConditionModel

device = "cuda"


class AttentionStore:
    def __init__(self, max_pixels=16 * 16):
        self.maps = {"down": {}, "mid": {}, "up": {}}
        self.max_pixels = max_pixels

    def put(self, place, layer, probs):
        if probs.shape[1] <= self.max_pixels:
            self.maps[place].setdefault(layer, []).append(probs)  # LEAK

    def average(self):
        last = [layer[-1].mean(0) for place in self.maps.values() for layer in place.values() if layer]
        return sum(float(m.mean()) for m in last) / max(len(last), 1)


class StoringProcessor:
    def __init__(self, store, place, name):
        self.store, self.place, self.name = store, place, name

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, **kwargs):
        cross = encoder_hidden_states is not None
        context = encoder_hidden_states if cross else hidden_states
        q = attn.head_to_batch_dim(attn.to_q(hidden_states))
        k = attn.head_to_batch_dim(attn.to_k(context))
        v = attn.head_to_batch_dim(attn.to_v(context))
        probs = attn.get_attention_scores(q, k, attention_mask)
        if cross:
            self.store.put(self.place, self.name, probs)
        out = attn.batch_to_head_dim(torch.bmm(probs, v))
        return attn.to_out[1](attn.to_out[0](out))


def install(unet, store):
    processors = {}
    for name in unet.attn_processors:
        place = name.split("_")[0]
        processors[name] = StoringProcessor(store, place, name)
    unet.set_attn_processor(processors)


@torch.no_grad()
def generate(unet, scheduler, text, steps):
    latents = torch.randn(2, 4, 16, 16, device=device)
    scheduler.set_timesteps(steps)
    for t in scheduler.timesteps:
        noise = unet(latents, t, encoder_hidden_states=text).sample
        latents = scheduler.step(noise, t, latents).prev_sample
    return latents


def main():
    unet = UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=64, attention_head_dim=8, norm_num_groups=8,
    ).to(device).eval()
    scheduler = DDIMScheduler(num_train_timesteps=1000)
    store = AttentionStore()
    install(unet, store)
    for image in range(50):
        text = torch.randn(2, 77, 64, device=device)
        generate(unet, scheduler, text, steps=4)
        if image % 10 == 0:
            print(f"image {image}: attention {store.average():.4f} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
