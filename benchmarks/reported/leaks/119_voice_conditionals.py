# kind: the cache of voice conditionals keeps the reference encoder's autograd graph with each new voice (no inference_mode); from devnen/Chatterbox-TTS-Server PR 166
import hashlib
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Conditionals:
    speaker_emb: torch.Tensor
    prompt_tokens: torch.Tensor
    emotion: float = 0.5


class VoiceEncoder(nn.Module):
    def __init__(self, n_mels=40, hidden=96, emb=128):
        super().__init__()
        self.lstm = nn.LSTM(n_mels, hidden, num_layers=1, batch_first=True)
        self.proj = nn.Linear(hidden, emb)

    def forward(self, mels):
        out, _ = self.lstm(mels)
        return nn.functional.normalize(self.proj(out.mean(1)), dim=-1)


class ChatterboxLike(nn.Module):
    def __init__(self, vocab=64, dim=128):
        super().__init__()
        self.ve = VoiceEncoder(emb=dim)
        self.text = nn.Embedding(vocab, dim)
        self.decoder = nn.Sequential(nn.Linear(dim, 256), nn.GELU(), nn.Linear(256, 80))
        self.conds = None

    def prepare_conditionals(self, wav):
        mels = wav.unfold(0, 400, 160)[:, :40].unsqueeze(0)
        speaker = self.ve(mels)
        tokens = (mels[0].mean(-1).detach() * 100).long() % 64
        self.conds = Conditionals(speaker, tokens)

    def generate(self, text_ids, wav=None):
        if wav is not None:
            self.prepare_conditionals(wav)
        with torch.inference_mode():
            h = self.text(text_ids) + self.conds.speaker_emb.detach()
            return self.decoder(h)


class TTSEngine:
    def __init__(self):
        self.model = ChatterboxLike().cuda().eval()
        self._conds_cache = {}

    def synthesize(self, text, voice_path, wav):
        key = hashlib.md5(voice_path.encode()).hexdigest()
        ids = torch.tensor([ord(c) % 64 for c in text], device="cuda")
        if key in self._conds_cache:
            self.model.conds = self._conds_cache[key]
            return self.model.generate(ids)
        mel = self.model.generate(ids, wav=wav)  # ALSO
        self._conds_cache[key] = self.model.conds  # LEAK
        return mel


def main():
    torch.manual_seed(0)
    engine = TTSEngine()
    seconds = 0.0
    for request in range(100):
        user = request if request % 5 else max(request - 5, 0)
        gen = torch.Generator().manual_seed(user)
        wav = torch.randn(16000 * 3, generator=gen).cuda()
        mel = engine.synthesize(f"request number {request} please", f"/voices/user_{user}.wav", wav)
        seconds += mel.shape[0] * 0.012
    print(f"generated {seconds:.1f}s of audio")


main()
