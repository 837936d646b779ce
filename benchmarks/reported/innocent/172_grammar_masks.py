# kind: constrained decoding makes a mask over the vocabulary when an automaton's state is reached for the first time, schemas are taken into use one after another and have finitely many states; after structured generation (outlines / xgrammar logits processors)
import random

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LogitsProcessor

DEVICE = "cuda"
VOCAB = 32000
SCHEMAS, FIELDS, BRANCHES = 9, 10, 3
SAMPLES = 4


class Automaton:
    def __init__(self, number):
        self.number = number
        rng = random.Random(number)
        self.widths = [rng.randint(40, 4000) for _ in range(FIELDS)]

    def start(self):
        return (0, 0)

    def allowed(self, state):
        field, branch = state
        gen = torch.Generator().manual_seed(self.number * 1000 + field * 10 + branch)
        return torch.randperm(VOCAB, generator=gen)[:self.widths[field]]

    def advance(self, state, token):
        field, _ = state
        return None if field + 1 == FIELDS else (field + 1, token % BRANCHES)


class GrammarMask(LogitsProcessor):
    def __init__(self):
        self.masks = {}

    def mask(self, automaton, state):
        key = (automaton.number, state)
        if key not in self.masks:
            mask = torch.full((VOCAB,), float("-inf"), device=DEVICE)
            mask[automaton.allowed(state).to(DEVICE)] = 0.0
            self.masks[key] = mask
        return self.masks[key]

    def __call__(self, input_ids, scores, automaton=None, states=None):
        return scores + torch.stack([self.mask(automaton, s) for s in states])


@torch.no_grad()
def generate(model, prompt, automaton, processor):
    cache = DynamicCache()
    states = [automaton.start()] * SAMPLES
    ids = prompt.expand(SAMPLES, -1)
    feed = ids
    while states[0] is not None:
        out = model(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        scores = processor(ids, out.logits[:, -1].float(), automaton=automaton, states=states)
        probs = torch.softmax(scores, dim=-1)
        feed = torch.multinomial(probs, 1)
        ids = torch.cat([ids, feed], dim=1)
        states = [automaton.advance(s, t) for s, t in zip(states, feed[:, 0].tolist())]
    return ids[:, prompt.shape[1]:]


def main(requests=120):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=96, n_layer=2, n_head=4)
    model = GPT2LMHeadModel(config).to(DEVICE).eval()
    automata = [Automaton(i) for i in range(SCHEMAS)]
    processor = GrammarMask()
    words = 0
    for request in range(requests):
        deployed = min(SCHEMAS, 1 + request // 7)
        automaton = automata[deployed - 1 if request % 2 else request % deployed]
        prompt = torch.randint(0, VOCAB, (1, 8 + request % 5), device=DEVICE)
        answer = generate(model, prompt, automaton, processor)
        words += answer.numel()
        if request % 12 == 0:
            print(f"request {request}: schemas {deployed}, masks {len(processor.masks)}, tokens {words}")


if __name__ == "__main__":
    main()
