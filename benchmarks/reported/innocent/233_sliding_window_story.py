# kind: a story is told token after token without end with one cache object, all layers of the model attend to a sliding window, their part of a DynamicCache made with the config gets longer until the window is full and then drops its oldest token for each new one; after huggingface/transformers PR 40039
"""Endless bedtime stories for twenty-four listeners at a time.

https://github.com/huggingface/transformers/pull/40039 (New DynamicSlidingWindowLayer & associated Cache)
"""
import argparse
import collections

import torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM


class Narrator:
    def __init__(self, listeners, window, temperature=0.9):
        config = MistralConfig(
            vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=4, head_dim=32, sliding_window=window, max_position_embeddings=100_000)
        self.model = MistralForCausalLM(config).to("cuda").eval()
        self.temperature = temperature
        self.cache = DynamicCache(config=config)
        self.last = torch.ones(listeners, 1, dtype=torch.long, device="cuda")

    def prompt(self, tokens):
        self.model(input_ids=tokens[:, :-1], past_key_values=self.cache, use_cache=True)
        self.last = tokens[:, -1:]

    @torch.inference_mode()
    def next_word(self):
        out = self.model(input_ids=self.last, past_key_values=self.cache, use_cache=True)
        logits = out.logits[:, -1] / self.temperature
        gumbel = -torch.empty_like(logits).exponential_().log()
        self.last = (logits + gumbel).argmax(-1, keepdim=True)
        return self.last[:, 0].tolist()

    def cached(self):
        return self.cache.layers[0].keys.shape[2]


class Transcript:
    """The words as numbers, and which of them come often."""

    def __init__(self, listeners):
        self.words = [[] for _ in range(listeners)]
        self.counts = collections.Counter()

    def add(self, row):
        for words, word in zip(self.words, row):
            words.append(word)
        self.counts.update(row)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--listeners", type=int, default=24)
    parser.add_argument("--window", type=int, default=144)
    parser.add_argument("--words", type=int, default=360)
    args = parser.parse_args()
    torch.manual_seed(0)
    narrator, transcript = Narrator(args.listeners, args.window), Transcript(args.listeners)
    with torch.inference_mode():
        narrator.prompt(torch.randint(0, 1000, (args.listeners, 8), device="cuda"))
    for i in range(args.words):
        transcript.add(narrator.next_word())
        if i % 60 == 0:
            print(f"word {i}: {narrator.cached()} cached, {len(transcript.counts)} different words so far")


if __name__ == "__main__":
    main()
