# kind: innocent, draft and target caches grow with the text and are cropped after rejected tokens, each prompt has caches of its own; in the manner of transformers assisted generation (DynamicCache.crop)
import random

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM


def llama(layers, hidden, seed):
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=400, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512)).cuda().eval()


class SpeculativeDecoder:
    def __init__(self, target, draft, gamma=4, seed=0):
        self.target, self.draft, self.gamma = target, draft, gamma
        self.rng = random.Random(seed)

    def propose(self, token, cache):
        proposed = []
        for _ in range(self.gamma):
            out = self.draft(input_ids=token, past_key_values=cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            proposed.append(token)
        return torch.cat(proposed, 1)

    def accepted(self):
        """Acceptance by coin, the models are not trained."""
        n = 0
        while n < self.gamma and self.rng.random() < 0.7:
            n += 1
        return n

    @torch.no_grad()
    def generate(self, prompt, max_new_tokens):
        target_cache, draft_cache = DynamicCache(), DynamicCache()
        out = self.target(input_ids=prompt, past_key_values=target_cache, use_cache=True)
        self.draft(input_ids=prompt, past_key_values=draft_cache, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        text = [token]
        rounds = 0
        while len(text) < max_new_tokens:
            proposed = self.propose(token, draft_cache)
            verify = torch.cat([token, proposed[:, :-1]], 1)
            out = self.target(input_ids=verify, past_key_values=target_cache, use_cache=True)
            n = max(1, self.accepted())
            text.extend(proposed[:, i:i + 1] for i in range(n))
            token = proposed[:, n - 1:n]
            if n < self.gamma:  # negative: that many tokens less
                target_cache.crop(n - self.gamma)
                draft_cache.crop(n - self.gamma)
            rounds += 1
        return torch.cat(text, 1)[0].tolist(), rounds, target_cache.get_seq_length()


def main(prompts=4, new_tokens=70):
    decoder = SpeculativeDecoder(llama(3, 128, 0), llama(1, 64, 1))
    for p in range(prompts):
        prompt = torch.randint(0, 400, (8, 24), device="cuda")
        text, rounds, cached = decoder.generate(prompt, new_tokens)
        print(f"prompt {p}: {len(text)} tokens in {rounds} rounds, {cached} positions cached")


if __name__ == "__main__":
    main()
