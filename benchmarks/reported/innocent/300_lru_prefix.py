# kind: https://github.com/generative-computing/mellea/pull/544: KV caches of system prompts in an LRU cache of 40 entries
import random
from collections import OrderedDict

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

device = "cuda"


class PrefixCache:
    def __init__(self, maxsize):
        self.entries, self.maxsize = OrderedDict(), maxsize
        self.hits = self.misses = 0

    def get(self, key, make):
        if key in self.entries:
            self.entries.move_to_end(key)
            self.hits += 1
        else:
            self.misses += 1
            self.entries[key] = make()
            while len(self.entries) > self.maxsize:
                self.entries.popitem(last=False)
        return self.entries[key]


class Server:
    def __init__(self):
        config = LlamaConfig(
            vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=512,
            bos_token_id=1, eos_token_id=2,
        )
        self.model = LlamaForCausalLM(config).to(device).eval()
        self.prefixes = PrefixCache(40)

    def prefill(self, key):
        ids = torch.randint(3, 1000, (1, 96), device=device)
        out = self.model(ids, use_cache=True)
        return [(layer.keys, layer.values) for layer in out.past_key_values.layers]

    @torch.no_grad()
    def ask(self, key, question, answer=6):
        cache = DynamicCache()
        for i, (k, v) in enumerate(self.prefixes.get(key, lambda: self.prefill(key))):
            cache.update(k, v, i)
        ids, tokens = question, []
        for _ in range(answer):
            out = self.model(ids, past_key_values=cache, use_cache=True)
            ids = out.logits[:, -1:].argmax(-1)
            tokens.append(int(ids))
        return tokens


def main():
    random.seed(5)
    server = Server()
    for n in range(130):
        tenant = n if random.random() < 0.7 else random.randrange(n + 1)
        question = torch.randint(3, 1000, (1, 12), device=device)
        reply = server.ask(tenant, question)
        if n % 10 == 0:
            p = server.prefixes
            print(f"request {n}: {len(reply)} tokens, cached {len(p.entries)} hits {p.hits} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
