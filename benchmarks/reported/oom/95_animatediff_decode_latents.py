# CARD: 22GiB
# KNOBS: NO_GRAD FRAMES=16 DECODE_CHUNK=0 SLICING
# EXPERT: the pipeline itself runs under torch.no_grad(), but decode_latents called by hand does not, so the VAE decoder keeps its graph for all 16 frames; torch.no_grad() around it, then decode the frames in chunks (enable_vae_slicing)
# after huggingface/diffusers issue 7378 (https://github.com/huggingface/diffusers/issues/7378)
import os

import torch
from diffusers import AutoencoderKL, DDIMScheduler, MotionAdapter, UNet2DConditionModel, UNetMotionModel
from transformers import CLIPTextConfig, CLIPTextModel

import knobs

NUM_FRAMES = int(os.environ.get("FRAMES", 16))
CHUNK = int(os.environ.get("DECODE_CHUNK", 0))
STEPS = 2


def load_pipe():
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        adapter = MotionAdapter(block_out_channels=(320, 640, 1280, 1280), motion_layers_per_block=2,
                                motion_num_attention_heads=8, motion_max_seq_length=32)
        unet2d = UNet2DConditionModel(
            sample_size=64, cross_attention_dim=768, attention_head_dim=8, block_out_channels=(320, 640, 1280, 1280))
        unet = UNetMotionModel.from_unet2d(unet2d, adapter)
        vae = AutoencoderKL(
            block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4, sample_size=512,
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4)
        text = CLIPTextModel(CLIPTextConfig(vocab_size=49408, hidden_size=768, intermediate_size=3072,
                                            num_hidden_layers=12, num_attention_heads=12))
    torch.set_default_dtype(torch.float32)
    return unet.half(), vae.half(), text.half()


class VideoToVideo:
    """what AnimateDiffVideoToVideoPipeline does, without tokenizer and image processor"""

    def __init__(self):
        self.unet, self.vae, self.text_encoder = load_pipe()
        for m in (self.unet, self.vae, self.text_encoder):
            m.to("cuda").eval()
        self.scheduler = DDIMScheduler(clip_sample=False, timestep_spacing="linspace", beta_schedule="linear")
        if os.environ.get("SLICING") == "1":
            self.vae.enable_slicing()

    @torch.no_grad()
    def __call__(self, video, prompt_ids, guidance_scale=7.5, strength=0.5):
        embeds = self.text_encoder(prompt_ids)[0]  # negative, positive
        embeds = embeds.repeat_interleave(len(video), dim=0)
        latents = torch.cat([self.vae.encode(f[None]).latent_dist.sample() for f in video])
        latents = latents * self.vae.config.scaling_factor
        latents = latents.permute(1, 0, 2, 3)[None]  # 1, 4, f, h, w
        self.scheduler.set_timesteps(STEPS)
        latents = latents + strength * torch.randn_like(latents)
        for t in self.scheduler.timesteps:
            inp = torch.cat([latents] * 2)
            noise = self.unet(inp, t, encoder_hidden_states=embeds).sample
            uncond, cond = noise.chunk(2)
            noise = uncond + guidance_scale * (cond - uncond)
            latents = self.scheduler.step(noise, t, latents).prev_sample
        return latents

    def decode_latents(self, latents):
        latents = 1 / self.vae.config.scaling_factor * latents
        b, c, f, h, w = latents.shape
        latents = latents.permute(0, 2, 1, 3, 4).reshape(b * f, c, h, w)
        if CHUNK:
            image = torch.cat([self.vae.decode(x).sample.cpu() for x in latents.split(CHUNK)])
        else:
            image = self.vae.decode(latents).sample
        video = image[None, :].reshape((b, f, -1) + image.shape[2:]).permute(0, 2, 1, 3, 4)
        return video.float()


def tensor2vid(video):
    return ((video.detach().cpu().clamp(-1, 1) + 1) * 127.5).byte().permute(0, 2, 3, 4, 1)


def main():
    pipe = VideoToVideo()
    print("weights: MiB", torch.cuda.memory_allocated() // 2 ** 20)
    for i in range(1):
        video = torch.rand(NUM_FRAMES, 3, 512, 512, device="cuda", dtype=torch.float16) * 2 - 1
        ids = torch.randint(0, 49408, (2, 77), device="cuda")
        latents = pipe(video, ids)
        print("latents", tuple(latents.shape), "peak MiB", torch.cuda.max_memory_allocated() // 2 ** 20)
        video_tensor = knobs.no_grad(pipe.decode_latents)(latents)
        frames = tensor2vid(video_tensor)
        print("request", i, tuple(frames.shape))
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
