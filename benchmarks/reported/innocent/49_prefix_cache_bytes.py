# kind: prefix cache of a server bounded by its bytes, the least recently used prefixes go when the budget is passed; from LMCache / sglang radix cache discussions
from collections import OrderedDict
import random

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel


class PrefixCache:
    def __init__(self, budget):
        self.budget, self.used = budget, 0
        self.entries = OrderedDict()

    @staticmethod
    def size(kv):
        return sum(k.nbytes + v.nbytes for k, v in kv)

    def get(self, key):
        if key in self.entries:
            self.entries.move_to_end(key)
            return self.entries[key]

    def put(self, key, kv):
        self.entries[key] = kv
        self.used += self.size(kv)
        while self.used > self.budget:
            _, old = self.entries.popitem(last=False)
            self.used -= self.size(old)


class Server:
    def __init__(self, budget=24 << 20):
        torch.manual_seed(0)
        cfg = GPT2Config(vocab_size=600, n_positions=256, n_embd=192, n_layer=4, n_head=6)
        self.lm = GPT2LMHeadModel(cfg).cuda().eval()
        self.cache = PrefixCache(budget)
        self.hits = 0

    @torch.no_grad()
    def complete(self, system, user):
        kv = self.cache.get(system)
        if kv is None:
            ids = torch.tensor([system], device="cuda")
            out = self.lm(ids, use_cache=True)
            kv = [(l.keys, l.values) for l in out.past_key_values.layers]
            self.cache.put(system, kv)
        else:
            self.hits += 1
        past = DynamicCache([(k, v) for k, v in kv])
        ids = torch.tensor([user], device="cuda")
        return self.lm(ids, past_key_values=past).logits[0, -1].argmax().item()


def main():
    rng = random.Random(0)
    srv = Server()
    prompts = [tuple(rng.randrange(600) for _ in range(rng.randint(60, 120))) for _ in range(90)]
    for i in range(180):
        now = prompts[i // 2] if i % 2 == 0 else prompts[max(0, i // 2 - rng.randint(0, 12))]
        srv.complete(now, [rng.randrange(600) for _ in range(8)])
        if i % 30 == 0:
            print("request", i, "prefixes", len(srv.cache.entries), "hits", srv.hits, "MiB %.1f" % (srv.cache.used / 2**20))


main()
