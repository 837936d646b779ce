# kind: per-request bad-words processors (a vocabulary-sized bias each) pile up in the shared default sampling parameters; from vllm-project/vllm issue 10630
from dataclasses import dataclass, field
from typing import List, Optional

import torch
from torch import nn

VOCAB = 32768


class NoBadWordsLogitsProcessor:
    def __init__(self, bad_word_ids):
        self.bad_word_ids = bad_word_ids
        self.word_bias: Optional[torch.Tensor] = None

    def __call__(self, past_token_ids, logits):
        if self.word_bias is None:
            self._init_word_bias(logits)
        return logits + self.word_bias

    def _init_word_bias(self, logits):
        self.word_bias = torch.zeros(VOCAB, device=logits.device)  # ALSO
        self.word_bias[self.bad_word_ids] = float("-inf")


@dataclass
class SamplingParams:
    temperature: float = 0.8
    max_tokens: int = 2
    bad_words: List[int] = field(default_factory=list)
    logits_processors: List = field(default_factory=list)


class TinyLM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)

    def forward(self, ids):
        out, _ = self.rnn(self.embed(ids))
        return out[:, -1] @ self.embed.weight.t()


class LLMEngine:
    def __init__(self, model, default_params):
        self.model = model
        self.default_params = default_params

    def add_bad_words(self, params, words):
        if words:
            params.logits_processors.append(NoBadWordsLogitsProcessor(words))  # LEAK
        return params

    @torch.inference_mode()
    def generate(self, prompt, bad_words=None, params=None):
        params = self.add_bad_words(params or self.default_params, bad_words)
        ids = torch.tensor([prompt], device="cuda")
        for _ in range(params.max_tokens):
            logits = self.model(ids)[0]
            for processor in params.logits_processors:
                logits = processor(ids, logits)
            probs = torch.softmax(logits / params.temperature, -1)
            ids = torch.cat([ids, torch.multinomial(probs, 1)[None]], 1)
        return ids[0, len(prompt):].tolist()


if __name__ == "__main__":
    torch.manual_seed(0)
    engine = LLMEngine(TinyLM().cuda().eval(), SamplingParams())
    lengths = 0
    for request in range(120):
        prompt = [(request * 31 + k) % VOCAB for k in range(12)]
        banned = [(request * 17 + k * 101) % VOCAB for k in range(6)]
        lengths += len(engine.generate(prompt, bad_words=banned))
    print("tokens", lengths)
