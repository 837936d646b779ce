# kind: three of the four per-request dicts of a streaming speech synthesizer are popped when the request is over, the flow cache is forgotten; from QwenAudio/CosyVoice PR 603 and issue 491
import threading
import time
import uuid

import torch
import torch.nn as nn


class LLM(nn.Module):
    def __init__(self, vocab=600, dim=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.head = nn.Linear(dim, vocab)

    @torch.no_grad()
    def inference(self, text, n):
        h = self.emb(text.cuda()).mean(0, keepdim=True)
        tok = torch.zeros(1, dtype=torch.long, device="cuda")
        for _ in range(n):
            h = self.cell(self.emb(tok), h)
            tok = self.head(h).argmax(-1)
            yield tok.item()


class Flow(nn.Module):
    def __init__(self, vocab=600, dim=80):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.net = nn.Conv1d(dim, dim, 3, padding=1)

    @torch.no_grad()
    def inference(self, token, cache):
        mu = self.emb(token).transpose(1, 2).repeat_interleave(4, dim=2)
        noise = torch.randn_like(mu)
        if cache is not None:
            keep = min(cache.size(2), mu.size(2))
            noise[:, :, :keep] = cache[0:1, :, :keep]
        mel = noise + self.net(mu)
        return mel, torch.cat([noise, mu], dim=0)


class HiFT(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(80, 1, 32, stride=16, padding=8)

    @torch.no_grad()
    def inference(self, mel, cache):
        wav = self.up(mel)
        if cache is not None:
            n = min(cache.size(2), wav.size(2))
            wav[:, :, :n] = 0.5 * wav[:, :, :n] + 0.5 * cache[:, :, :n]
        return wav, wav[:, :, -160:].clone()


class CosyVoiceModel:
    hop = 20

    def __init__(self):
        self.llm, self.flow, self.hift = LLM().cuda(), Flow().cuda(), HiFT().cuda()
        self.lock = threading.Lock()
        self.tts_speech_token_dict = {}
        self.llm_end_dict = {}
        self.flow_cache_dict = {}
        self.hift_cache_dict = {}

    def llm_job(self, text, n, key):
        for tok in self.llm.inference(text, n):
            self.tts_speech_token_dict[key].append(tok)
        self.llm_end_dict[key] = True

    def token2wav(self, token, key):
        mel, flow_cache = self.flow.inference(token, self.flow_cache_dict[key])
        self.flow_cache_dict[key] = flow_cache  # LEAK
        wav, source = self.hift.inference(mel, self.hift_cache_dict[key])
        self.hift_cache_dict[key] = source
        return wav

    def tts(self, text, n=60):
        key = str(uuid.uuid1())
        with self.lock:
            self.tts_speech_token_dict[key], self.llm_end_dict[key] = [], False
            self.flow_cache_dict[key], self.hift_cache_dict[key] = None, None
        p = threading.Thread(target=self.llm_job, args=(text, n, key))
        p.start()
        while True:
            have = len(self.tts_speech_token_dict[key])
            if have >= self.hop:
                part = torch.tensor([self.tts_speech_token_dict[key][:have]], device="cuda")
                yield {"tts_speech": self.token2wav(part, key).cpu()}
                self.tts_speech_token_dict[key] = self.tts_speech_token_dict[key][have:]
            if self.llm_end_dict[key] and len(self.tts_speech_token_dict[key]) < self.hop:
                break
            time.sleep(0.002)
        p.join()
        rest = self.tts_speech_token_dict[key] or [0]
        yield {"tts_speech": self.token2wav(torch.tensor([rest + [0] * 16], device="cuda"), key).cpu()}
        with self.lock:
            self.tts_speech_token_dict.pop(key)
            self.llm_end_dict.pop(key)
            self.hift_cache_dict.pop(key)


def main():
    torch.manual_seed(0)
    model = CosyVoiceModel()
    for i in range(80):
        text = torch.randint(0, 600, (12,))
        samples = sum(part["tts_speech"].numel() for part in model.tts(text))
        if i % 20 == 0:
            print(f"request {i}: {samples} samples, {len(model.hift_cache_dict)} streams open")


if __name__ == "__main__":
    main()
