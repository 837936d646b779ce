# kind: all caches of a synthesis stream are popped after its last chunk, the callers of a voice hotline come online one after another until every line is busy; after QwenAudio/CosyVoice PR 603 (the repaired form)
import random
import uuid

import torch
import torch.nn as nn

LINES = 16


class Decoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(512, dim)
        self.mix = nn.Conv1d(dim, dim, 5, padding=2)
        self.up = nn.ConvTranspose1d(dim, 1, 16, 8, 4)

    def forward(self, tokens, flow_cache, overlap):
        x = self.emb(tokens).transpose(1, 2)
        if flow_cache is not None:
            x = torch.cat([flow_cache, x], dim=2)
        y = self.mix(x)
        wav = self.up(y[:, :, -tokens.shape[1]:])
        if overlap is not None:
            wav[:, :, :overlap.shape[2]] += overlap
        return wav, x, wav[:, :, -64:].clone()


class StreamingModel:
    def __init__(self):
        self.net = Decoder().cuda().eval()
        self.token_dict, self.flow_cache_dict, self.overlap_dict = {}, {}, {}

    @torch.inference_mode()
    def tts(self, chunks):
        key = str(uuid.uuid1())
        self.token_dict[key] = []
        self.flow_cache_dict[key] = self.overlap_dict[key] = None
        try:
            for n in range(chunks):
                tokens = torch.randint(0, 512, (1, 25), device="cuda")
                self.token_dict[key].append(tokens)
                wav, self.flow_cache_dict[key], self.overlap_dict[key] = self.net(
                    tokens, self.flow_cache_dict[key], self.overlap_dict[key])
                yield wav.cpu()
        finally:
            for table in (self.token_dict, self.flow_cache_dict, self.overlap_dict):
                table.pop(key)


class Line:
    def __init__(self, model, rng):
        self.model, self.rng = model, rng
        self.stream, self.spoken = None, 0

    def tick(self):
        if self.stream is None:
            self.stream = self.model.tts(self.rng.randint(8, 14))
        part = next(self.stream, None)
        if part is None:
            self.stream = None
        else:
            self.spoken += part.shape[-1]


class Hotline:
    def __init__(self, seed=1):
        self.model, self.rng = StreamingModel(), random.Random(seed)
        self.lines = []

    def tick(self, i):
        if i % 5 == 0 and len(self.lines) < LINES:
            self.lines.append(Line(self.model, self.rng))
        for line in self.lines:
            line.tick()


def main():
    torch.manual_seed(0)
    hotline = Hotline()
    for i in range(180):
        hotline.tick(i)
        if i % 30 == 0:
            print(f"tick {i}: {len(hotline.lines)} lines, {len(hotline.model.token_dict)} streams, "
                  f"{sum(l.spoken for l in hotline.lines)} samples")


if __name__ == "__main__":
    main()
