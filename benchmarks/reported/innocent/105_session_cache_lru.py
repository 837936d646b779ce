# kind: innocent, kv caches of sessions live in an LRU of 8 sessions and are dropped afterwards; from lm-sys/FastChat issue 211, ggml-org/llama.cpp slots
import random
from collections import OrderedDict

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel


class SessionPool:
    def __init__(self, capacity=8):
        self.capacity = capacity
        self.slots = OrderedDict()

    def acquire(self, session_id):
        if session_id in self.slots:
            self.slots.move_to_end(session_id)
        else:
            if len(self.slots) >= self.capacity:
                self.slots.popitem(last=False)
            self.slots[session_id] = DynamicCache()
        return self.slots[session_id]

    def release(self, session_id):
        self.slots.pop(session_id, None)


class ChatServer:
    def __init__(self, context=96):
        config = GPT2Config(vocab_size=300, n_embd=96, n_layer=2, n_head=4, n_positions=128,
                            attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=0, eos_token_id=0)
        self.model = GPT2LMHeadModel(config).cuda().eval()
        self.sessions = SessionPool()
        self.context = context

    @torch.inference_mode()
    def complete(self, session_id, tokens, max_new_tokens=2):
        cache = self.sessions.acquire(session_id)
        if cache.get_seq_length() + len(tokens) + max_new_tokens > self.context:
            self.sessions.release(session_id)
            cache = self.sessions.acquire(session_id)
        ids = torch.tensor([tokens], device="cuda")
        reply = []
        for _ in range(max_new_tokens):
            out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
            ids = out.logits[:, -1:].argmax(-1)
            reply.append(ids.item())
        return reply


def traffic(n_requests, rnd):
    users = [f"user{i}" for i in range(4)]
    for i in range(n_requests):
        if rnd.random() < 0.5:
            users[rnd.randrange(4)] = f"user{i + 100}"
        yield rnd.choice(users), [rnd.randrange(300) for _ in range(rnd.randint(12, 30))]


def main():
    torch.manual_seed(0)
    rnd = random.Random(3)
    server = ChatServer()
    seen, n_tokens = set(), 0
    for user, tokens in traffic(170, rnd):
        n_tokens += len(server.complete(user, tokens))
        seen.add(user)
    print("sessions", len(seen), "in memory", len(server.sessions.slots), "tokens", n_tokens)


if __name__ == "__main__":
    main()
