# kind: huggingface/transformers style chat server: each conversation keeps its cache of keys and values, until the visitor leaves
import random

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
                     num_key_value_heads=4, vocab_size=1000, max_position_embeddings=4096)
model = LlamaForCausalLM(config).cuda().eval()


class Conversation:
    def __init__(self):
        self.cache = DynamicCache(config=config)
        self.turns = 0

    @torch.inference_mode()
    def ask(self, tokens, answer_len=6):
        ids = tokens
        for _ in range(answer_len):
            out = model(input_ids=ids, past_key_values=self.cache, use_cache=True)
            ids = out.logits[:, -1:].argmax(-1)
        self.turns += 1
        return ids


class Server:
    def __init__(self):
        self.sessions = {}

    def message(self, user, text):
        chat = self.sessions.setdefault(user, Conversation())
        chat.ask(text)
        if chat.turns >= 12:
            del self.sessions[user]


random.seed(0)
server = Server()
for request in range(120):
    user = random.randrange(3)
    server.message(user, torch.randint(0, 1000, (1, random.randint(30, 60)), device="cuda"))
print(len(server.sessions), "open", torch.cuda.memory_allocated() >> 20, "MiB")
