# kind: cos/sin tables cached per (offset, length) in a streaming decoder whose offset never comes back; from issues on position caches keyed by shape or offset, small tensors
import torch
import torch.nn as nn


class Rotary(nn.Module):
    def __init__(self, dim, base=10_000.0):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / base ** (torch.arange(0, dim, 2).float() / dim), persistent=False)
        self._tables = {}

    def tables(self, offset, length):
        key = (offset, length)
        try:
            return self._tables[key]
        except KeyError:
            pos = torch.arange(offset, offset + length, device=self.inv_freq.device).float()
            ang = torch.outer(pos, self.inv_freq).repeat(1, 2)
            self._tables[key] = ang.cos(), ang.sin()  # LEAK
            return self._tables[key]

    def forward(self, x, offset):
        cos, sin = self.tables(offset, x.shape[-2])
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-b, a], dim=-1) * sin


class StreamingLayer(nn.Module):
    def __init__(self, dim, heads, context):
        super().__init__()
        self.heads, self.context = heads, context
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.rope = Rotary(dim // heads)

    def forward(self, x, offset, kv):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.rope(q, offset), self.rope(k, offset)
        if kv is not None:
            k, v = torch.cat([kv[0], k], 2)[:, :, -self.context:], torch.cat([kv[1], v], 2)[:, :, -self.context:]
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.proj(y.transpose(1, 2).reshape(b, t, d)), (k.clone(), v.clone())


class Vocoder(nn.Module):
    def __init__(self, mels=80, dim=128, layers=2):
        super().__init__()
        self.inp = nn.Linear(mels, dim)
        self.layers = nn.ModuleList(StreamingLayer(dim, 2, context=256) for _ in range(layers))
        self.out = nn.Linear(dim, 160)

    @torch.inference_mode()
    def chunk(self, mel, state):
        x = self.inp(mel)
        kvs = []
        for layer, kv in zip(self.layers, state["kv"]):
            x, kv = layer(x, state["offset"], kv)
            kvs.append(kv)
        state["kv"] = kvs
        state["offset"] += mel.shape[1]
        return self.out(x).flatten(1)


def broadcast(n_chunks, frames=96):
    """Radio: one stream that goes on all day."""
    voc = Vocoder().to("cuda").eval()
    state = {"kv": [None, None], "offset": 0}
    samples = 0
    for i in range(n_chunks):
        audio = voc.chunk(torch.randn(1, frames, 80).to("cuda"), state).cpu()
        samples += audio.numel()
        if i % 80 == 0:
            print(f"chunk {i}, position {state['offset']}, {samples} samples")


broadcast(320)
