# kind: cross-attention of every decoded token is kept by a hook of a simultaneous translator for the alignment policy, which looks at the newest; from QuentinFuxa/WhisperLiveKit issue 275 (and 283)
import torch
from torch import nn
import torch.nn.functional as F


class CrossAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)

    def forward(self, x, audio):
        b, n, d = x.shape
        split = lambda t: t.view(b, -1, self.heads, d // self.heads).transpose(1, 2)
        q = split(self.q(x))
        k, v = map(split, self.kv(audio).chunk(2, -1))
        qk = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        out = (qk.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
        return self.o(out), qk


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.cross_attn = CrossAttention(d, heads)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, audio):
        x = x + self.cross_attn(self.n1(x), audio)[0]
        return x + self.mlp(self.n2(x))


class TextDecoder(nn.Module):
    def __init__(self, vocab=120, d=64, heads=8, layers=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))

    def forward(self, tokens, audio):
        x = self.emb(tokens)
        for b in self.blocks:
            x = b(x, audio)
        return x @ self.emb.weight.T


class AlignAtt:
    """Stops writing when the attention has come too near to the end of the audio."""

    def __init__(self, decoder, frame_threshold=40):
        self.decoder = decoder
        self.frame_threshold = frame_threshold
        self.dec_attns = []
        for block in decoder.blocks:
            block.cross_attn.register_forward_hook(self._hook)

    def _hook(self, module, args, output):
        attn = F.softmax(output[1], dim=-1)
        self.dec_attns.append(attn.squeeze(0))  # LEAK

    def most_attended(self):
        last = torch.stack([a[:, -1] for a in self.dec_attns[-len(self.decoder.blocks):]])
        return last.mean((0, 1)).argmax().item()

    @torch.no_grad()
    def infer(self, audio, prompt, max_tokens=4):
        tokens, out = list(prompt), []
        for _ in range(max_tokens):
            logits = self.decoder(torch.tensor([tokens], device="cuda"), audio)
            frame = self.most_attended()
            if out and audio.shape[1] - frame < self.frame_threshold:
                break
            nxt = logits[0, -1].argmax().item()
            tokens.append(nxt)
            out.append(nxt)
        return out


class OnlineProcessor:
    def __init__(self, policy, keep_seconds=8, context=12):
        self.policy = policy
        self.audio = torch.zeros(1, 0, 64)
        self.keep, self.context, self.committed = keep_seconds * 50, context, [1, 2, 3, 4]

    def insert_audio_chunk(self, chunk):
        self.audio = torch.cat([self.audio, chunk], 1)[:, -self.keep:]

    def process_iter(self):
        new = self.policy.infer(self.audio.cuda(), self.committed[-self.context:])
        self.committed += new
        return new


torch.manual_seed(0)
decoder = TextDecoder().cuda().eval()
online = OnlineProcessor(AlignAtt(decoder))
for second in range(60):
    online.insert_audio_chunk(torch.randn(1, 50, 64))
    words = online.process_iter()
    if second % 15 == 0:
        print(f"{second:3d} s", words, len(online.committed))
