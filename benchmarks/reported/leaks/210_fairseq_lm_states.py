# kind: the language model's decoder states are looked up by lexicon state in a dict that start() empties, a streaming decoder calls start() once and goes on for ever; from facebookresearch/fairseq issue 3856
import random
from collections import namedtuple

import torch
import torch.nn as nn

VOCAB = 2000
FairseqLMState = namedtuple("FairseqLMState", ["prefix", "incremental_state", "probs"])


class LMState:
    """Opaque handle with children, as the decoder's C++ side hands them out."""

    __slots__ = ("children",)

    def __init__(self):
        self.children = {}

    def child(self, token):
        if token not in self.children:
            self.children[token] = LMState()
        return self.children[token]


class RnnLM(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.head = nn.Linear(dim, VOCAB)

    def step(self, token, h):
        h = self.cell(self.emb(token), h)
        return torch.log_softmax(self.head(h), -1), h


class FairseqLM:
    def __init__(self, model):
        self.model = model
        self.bos = torch.zeros(1, dtype=torch.long, device="cuda")
        self.states = {}

    @torch.no_grad()
    def start(self):
        self.states = {}
        root = LMState()
        probs, h = self.model.step(self.bos, torch.zeros(1, 128, device="cuda"))
        self.states[root] = FairseqLMState((0,), h, probs)
        return root

    @torch.no_grad()
    def score(self, state, token):
        parent = self.states[state]
        out = state.child(token)
        if out not in self.states:
            probs, h = self.model.step(torch.tensor([token], device="cuda"), parent.incremental_state)
            self.states[out] = FairseqLMState(parent.prefix[-3:] + (token,), h, probs)  # LEAK
        return out, parent.probs[0, token].item()


class LexiconDecoder:
    def __init__(self, lm, beam=3, lm_weight=0.5):
        self.lm, self.beam, self.lm_weight = lm, beam, lm_weight
        self.hyps = [(0.0, self.lm.start(), ())]

    def decode_step(self, emissions):
        words, am = emissions
        new = []
        for total, state, text in self.hyps:
            for w, a in zip(words, am):
                nxt, l = self.lm.score(state, w)
                new.append((total + a + self.lm_weight * l, nxt, text[-6:] + (w,)))
        new.sort(key=lambda h: -h[0])
        best = new[0][0]
        self.hyps = [(s - best, st, t) for s, st, t in new[:self.beam]]

    def best_hypothesis(self):
        return self.hyps[0][2]


class Microphone:
    def __init__(self, seed=0):
        self.rng = random.Random(seed)

    def chunk(self):
        return self.rng.sample(range(1, VOCAB), 3), [-abs(self.rng.gauss(1, 1)) for _ in range(3)]


class StreamingRecognizer:
    def __init__(self):
        self.decoder = LexiconDecoder(FairseqLM(RnnLM().cuda().eval()))

    def run(self, mic, chunks):
        for i in range(chunks):
            self.decoder.decode_step(mic.chunk())
            if i % 25 == 0:
                yield i, self.decoder.best_hypothesis()


def main():
    torch.manual_seed(0)
    for i, words in StreamingRecognizer().run(Microphone(), 125):
        print(i, " ".join(f"w{w}" for w in words))


if __name__ == "__main__":
    main()
