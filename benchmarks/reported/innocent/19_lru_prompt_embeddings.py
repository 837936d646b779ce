# kind: lru_cache with maxsize on the prompt encoder of an image service; from diffusers / web UI issues about prompt caches
from functools import lru_cache
import random
import torch
import torch.nn as nn


class TextEncoder(nn.Module):
    def __init__(self, vocab=256, dim=256, tokens=77):
        super().__init__()
        self.tokens = tokens
        self.emb = nn.Embedding(vocab, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 256, batch_first=True)

    def forward(self, text):
        raw = text.encode()[: self.tokens].ljust(self.tokens, b"\0")
        ids = torch.tensor([list(raw)], device=self.emb.weight.device)
        return self.layer(self.emb(ids))


class Denoiser(nn.Module):
    def __init__(self, ch=16, dim=256):
        super().__init__()
        self.inp = nn.Conv2d(4, ch, 3, padding=1)
        self.cond = nn.Linear(dim, ch)
        self.out = nn.Conv2d(ch, 4, 3, padding=1)

    def forward(self, z, cond):
        h = torch.relu(self.inp(z) + self.cond(cond.mean(1))[..., None, None])
        return self.out(h)


device = torch.device("cuda")
text_encoder = TextEncoder().to(device).eval()
unet = Denoiser().to(device).eval()


@lru_cache(maxsize=48)
def encode_prompt(prompt, negative=""):
    with torch.no_grad():
        cond = text_encoder(prompt)
        uncond = text_encoder(negative)
    return torch.cat([uncond, cond])


@torch.no_grad()
def text2image(prompt, steps=2, guidance=5.0, size=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(1, 4, size, size, generator=g).to(device)
    cond = encode_prompt(prompt)
    for i in range(steps):
        eu, ec = unet(torch.cat([z, z]), cond).chunk(2)
        z = z - (eu + guidance * (ec - eu)) / steps
    return z.clamp(-1, 1).cpu()


def requests(n):
    rng = random.Random(1)
    subjects = ["a castle", "an old boat", "two cats", "a green bottle", "the moon", "a tram"]
    styles = ["in oil", "as a woodcut", "at night", "in the rain", "from above", "made of glass"]
    for i in range(n):
        yield f"{rng.choice(subjects)} {rng.choice(styles)}, variation {rng.randrange(50)}"


for i, prompt in enumerate(requests(150)):
    image = text2image(prompt, seed=i)
    if i % 30 == 0:
        print(i, repr(prompt), image.mean().item(), encode_prompt.cache_info())
