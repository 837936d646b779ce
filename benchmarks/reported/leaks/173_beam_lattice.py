# kind: a debug_gc option switches DEBUG_SAVEALL on for the whole service, hypotheses of a lattice that know parents and children are cycles, and what the collector finds goes to gc.garbage; after circus-tent/circus PR 735 and yt-dlp/yt-dlp issue 1949
import gc
from dataclasses import dataclass, field
from typing import Optional

import torch
import torch.nn as nn

DEVICE = "cuda"
OPTIONS = {"beam": 4, "max_len": 8, "debug_gc": True}
VOCAB = 96
HIDDEN = 512


@dataclass(eq=False)
class Hypothesis:
    token: int
    score: float
    state: torch.Tensor
    attention: torch.Tensor
    parent: Optional["Hypothesis"] = None
    children: list = field(default_factory=list)

    def extend(self, token, score, state, attention):
        child = Hypothesis(token, score, state, attention, parent=self)
        self.children.append(child)  # ALSO
        return child

    def tokens(self):
        node, out = self, []
        while node.parent is not None:
            out.append(node.token)
            node = node.parent
        return out[::-1]

    def size(self):
        return 1 + sum(child.size() for child in self.children)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.cell = nn.GRUCell(2 * HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, VOCAB)

    def step(self, token, state, memory):
        weights = (memory @ state.t() / HIDDEN ** 0.5).softmax(0)
        context = (weights * memory).sum(0, keepdim=True)
        inputs = torch.cat((self.embed(token), context), -1)
        state = self.cell(inputs, state)
        return self.out(state).log_softmax(-1)[0], state, weights * memory


@torch.inference_mode()
def decode(decoder, memory, beam, max_len):
    start = Hypothesis(0, 0.0, memory.mean(0, keepdim=True), torch.zeros_like(memory))
    active = [start]
    for _ in range(max_len):
        candidates = []
        for hyp in active:
            token = torch.tensor([hyp.token], device=DEVICE)
            logp, state, attention = decoder.step(token, hyp.state, memory)
            best = logp.topk(beam)
            for score, index in zip(best.values.tolist(), best.indices.tolist()):
                candidates.append((hyp.score + score, hyp, index, state, attention))
        candidates.sort(key=lambda c: c[0], reverse=True)
        active = [hyp.extend(index, score, state, attention)
                  for score, hyp, index, state, attention in candidates[:beam]]
    winner = active[0]
    return winner.tokens(), winner.score, start.size()


def main():
    if OPTIONS["debug_gc"]:
        gc.set_debug(gc.DEBUG_SAVEALL)  # LEAK
    torch.manual_seed(0)
    decoder = Decoder().to(DEVICE).eval()
    for sentence in range(90):
        memory = torch.randn(24 + sentence % 9, HIDDEN).to(DEVICE)
        tokens, score, nodes = decode(decoder, memory, OPTIONS["beam"], OPTIONS["max_len"])
        if sentence % 5 == 0:
            found = gc.collect()
        if sentence % 15 == 0:
            print(f"sentence {sentence}: {tokens} score {score:.2f}, lattice of {nodes} nodes, collector found {found}")


if __name__ == "__main__":
    main()
