# kind: NVIDIA-NeMo/Speech issue #5755 "GPU memory leak in asr_model.transcribe()": hypotheses hold their logits
from dataclasses import dataclass, field
from typing import List, Optional

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC


@dataclass
class Hypothesis:
    score: float
    text: str
    y_sequence: Optional[torch.Tensor] = None
    timestep: List[int] = field(default_factory=list)


def build_model():
    cfg = Wav2Vec2Config(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
                         conv_dim=(64,) * 7, vocab_size=1024, num_conv_pos_embeddings=32)
    return Wav2Vec2ForCTC(cfg).cuda().eval()


class StreamingTranscriber:
    def __init__(self, model, chunk_s=10, rate=16000):
        self.model = model
        self.chunk = chunk_s * rate
        self.segments = []

    def _greedy(self, logits):
        ids = logits.argmax(-1)
        return [Hypothesis(0.0, "".join(chr(97 + i % 26) for i in row.unique().tolist()), lg)
                for row, lg in zip(ids.cpu(), logits)]

    @torch.no_grad()
    def feed(self, audio):
        batch = audio.view(-1, self.chunk).cuda()
        logits = self.model(batch).logits
        self.segments += self._greedy(logits)  # LEAK
        return self.segments[-1].text

    @property
    def transcript(self):
        return " ".join(h.text for h in self.segments)


def microphone(seconds, rate=16000):
    for start in range(0, seconds, 10):
        yield torch.randn(10 * rate)


if __name__ == "__main__":
    asr = StreamingTranscriber(build_model())
    for n, audio in enumerate(microphone(900)):
        asr.feed(audio)
    print(len(asr.transcript), "letters", n + 1, "chunks", torch.cuda.memory_allocated() >> 20, "MiB")
