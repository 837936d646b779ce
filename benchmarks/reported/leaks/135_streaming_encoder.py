# kind: the streaming encoder keeps all left context (required cache size -1) for as long as the microphone is open; from wenet-e2e/wenet issue 2404
import torch
from torch import nn
import torch.nn.functional as F


class StreamingAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, cache):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        kv = torch.stack([k, v])
        if cache is not None:
            kv = torch.cat([cache, kv], dim=3)
        y = F.scaled_dot_product_attention(q, kv[0], kv[1])
        return self.out(y.transpose(1, 2).reshape(b, t, d)), kv


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = StreamingAttention(dim, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, cache):
        y, cache = self.attn(self.norm1(x), cache)
        x = x + y
        return x + self.ff(self.norm2(x)), cache


class ASREncoder(nn.Module):
    def __init__(self, mels=40, dim=96, layers=3, vocab=100):
        super().__init__()
        self.subsample = nn.Conv1d(mels, dim, 4, stride=4)
        self.layers = nn.ModuleList(EncoderLayer(dim, 4) for _ in range(layers))
        self.ctc = nn.Linear(dim, vocab)

    def forward(self, feats, att_cache, required_cache_size):
        x = self.subsample(feats.transpose(1, 2)).transpose(1, 2)
        new_cache = []
        for layer, cache in zip(self.layers, att_cache):
            x, kv = layer(x, cache)
            if required_cache_size >= 0:
                kv = kv[:, :, :, kv.shape[3] - required_cache_size:].contiguous()
            new_cache.append(kv)
        return self.ctc(x), new_cache


class StreamingRecognizer:
    def __init__(self, model, chunk=64, num_left_chunks=-1):
        self.model = model
        self.required_cache_size = num_left_chunks * chunk // 4 if num_left_chunks >= 0 else -1
        self.att_cache = [None] * len(model.layers)
        self.hypothesis = []

    @torch.inference_mode()
    def accept_chunk(self, feats):
        logits, self.att_cache = self.model(feats, self.att_cache, self.required_cache_size)  # LEAK
        best = logits.argmax(-1)[0].tolist()
        self.hypothesis.extend(t for i, t in enumerate(best) if t and (i == 0 or t != best[i - 1]))


def microphone(chunks, frames):
    g = torch.Generator().manual_seed(0)
    for _ in range(chunks):
        yield torch.randn(1, frames, 40, generator=g)


if __name__ == "__main__":
    torch.manual_seed(0)
    recognizer = StreamingRecognizer(ASREncoder().cuda().eval(), num_left_chunks=-1)  # ALSO
    for chunk in microphone(150, 128):
        recognizer.accept_chunk(chunk.cuda())
    print(len(recognizer.hypothesis), "tokens")
