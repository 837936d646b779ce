# kind: beam hypotheses with their states pile up while a sentence is decoded, dropped after it; from translation toolkits' issues
from dataclasses import dataclass
import torch
from torch import nn


@dataclass
class Hypothesis:
    tokens: list
    score: float
    states: list
    attention: list


class Decoder(nn.Module):
    def __init__(self, vocab=120, dim=128):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.cell = nn.GRUCell(2 * dim, dim)
        self.key = nn.Linear(dim, dim)
        self.out = nn.Linear(2 * dim, vocab)

    def forward(self, tok, h, memory):
        att = torch.softmax((self.key(memory) * h[:, None]).sum(-1), dim=-1)
        context = (att[..., None] * memory).sum(1)
        h = self.cell(torch.cat([self.emb(tok), context], dim=-1), h)
        return torch.log_softmax(self.out(torch.cat([h, context], -1)), -1), h, att[..., None] * memory


class Translator:
    def __init__(self, beam=4, max_len=12, eos=1):
        self.dec = Decoder().to("cuda").eval()
        self.beam, self.max_len, self.eos = beam, max_len, eos

    @torch.inference_mode()
    def translate(self, source):
        memory = self.dec.emb(source)[None]
        h0 = memory.mean(1)
        beams = [Hypothesis([0], 0.0, [h0], [])]
        finished = []
        for _ in range(self.max_len):
            tok = torch.tensor([b.tokens[-1] for b in beams], device="cuda")
            h = torch.cat([b.states[-1] for b in beams])
            logp, h, aligned = self.dec(tok, h, memory.expand(len(beams), -1, -1))
            cand = []
            for i, b in enumerate(beams):
                top = logp[i].topk(self.beam)
                for s, t in zip(top.values.tolist(), top.indices.tolist()):
                    cand.append(Hypothesis(b.tokens + [t], b.score + s, b.states + [h[i:i + 1]],
                                           b.attention + [aligned[i]]))
            cand.sort(key=lambda c: -c.score)
            beams = []
            for c in cand:
                (finished if c.tokens[-1] == self.eos else beams).append(c)
                if len(beams) == self.beam:
                    break
        best = max(finished + beams, key=lambda c: c.score / len(c.tokens))
        return best.tokens, best.score


def main():
    torch.manual_seed(6)
    tr = Translator()
    results = []
    for n in range(12):
        src = torch.randint(2, 120, (150 + 30 * (n % 4),)).to("cuda")
        results.append(tr.translate(src))
        if n % 4 == 0:
            print("sentence", n, "score", round(results[-1][1], 2), results[-1][0][:6])
    print(len(results), "sentences")


main()
