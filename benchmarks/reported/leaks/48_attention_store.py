# kind: attention processors of a diffusion U-Net store probabilities per step, between_steps() is never called for images made without editing; from prompt-to-prompt style code (wooyeolbaek/attention-map-diffusers issue 5, Stability-AI/stablediffusion PR 431)
import torch
from diffusers import DDIMScheduler, UNet2DConditionModel


class AttentionStore:
    def __init__(self, max_tokens=256):
        self.max_tokens = max_tokens
        self.cur_step = 0
        self.step_store = {"down": [], "mid": [], "up": []}
        self.attention_store = {}

    def __call__(self, attn, place):
        if attn.shape[1] <= self.max_tokens:
            self.step_store[place].append(attn)  # LEAK
        return attn

    def between_steps(self):
        if not self.attention_store:
            self.attention_store = self.step_store
        else:
            for k, maps in self.step_store.items():
                for a, b in zip(self.attention_store[k], maps):
                    a += b
        self.step_store = {"down": [], "mid": [], "up": []}
        self.cur_step += 1


class StoreProcessor:
    def __init__(self, store, place):
        self.store, self.place = store, place

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, **kwargs):
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        q = attn.head_to_batch_dim(attn.to_q(hidden_states))
        k = attn.head_to_batch_dim(attn.to_k(context))
        v = attn.head_to_batch_dim(attn.to_v(context))
        probs = self.store(attn.get_attention_scores(q, k, attention_mask), self.place)
        out = attn.batch_to_head_dim(torch.bmm(probs, v))
        return attn.to_out[1](attn.to_out[0](out))


def register_attention_control(unet, store):
    procs = {}
    for name in unet.attn_processors:
        place = "mid" if name.startswith("mid") else "up" if name.startswith("up") else "down"
        procs[name] = StoreProcessor(store, place)
    unet.set_attn_processor(procs)


class Text2Image:
    def __init__(self):
        self.unet = UNet2DConditionModel(
            sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=32, attention_head_dim=4, norm_num_groups=8).cuda().eval()
        self.scheduler = DDIMScheduler(num_train_timesteps=1000)
        self.controller = AttentionStore()
        register_attention_control(self.unet, self.controller)

    @torch.no_grad()
    def __call__(self, text, steps=5, edit=None):
        self.scheduler.set_timesteps(steps)
        x = torch.randn(2, 4, 8, 8, device="cuda")
        for t in self.scheduler.timesteps:
            eps = self.unet(x, t, encoder_hidden_states=text).sample
            x = self.scheduler.step(eps, t, x).prev_sample
            if edit is not None:
                self.controller.between_steps()
                x = edit(x, self.controller)
        return x.clamp(-1, 1).cpu()


if __name__ == "__main__":
    torch.manual_seed(0)
    pipe = Text2Image()
    for i in range(18):
        latents = pipe(torch.randn(2, 12, 32, device="cuda"))
        print("image", i, "mean", round(latents.mean().item(), 3))
