# kind: chat worker keeps past_key_values of each conversation in a dict that is not pruned when clients leave; from lm-sys/FastChat issues 3223, 211
import queue
import threading
import uuid
import random
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM


@dataclass
class Conversation:
    session_id: str
    past_key_values: DynamicCache = field(default_factory=DynamicCache)
    turns: int = 0


@dataclass
class ChatRequest:
    session_id: str
    token_ids: list
    future: Future = field(default_factory=Future)


class ModelWorker(threading.Thread):
    def __init__(self, max_new_tokens=3):
        super().__init__(daemon=True)
        config = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=192, num_hidden_layers=3,
                             num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512)
        self.model = LlamaForCausalLM(config).cuda().eval()
        self.requests = queue.Queue(maxsize=8)
        self.conversations = {}
        self.max_new_tokens = max_new_tokens

    def get_conversation(self, session_id):
        conv = self.conversations.get(session_id)
        if conv is None:
            conv = Conversation(session_id)
            self.conversations[session_id] = conv  # LEAK
        return conv

    @torch.inference_mode()
    def generate(self, request):
        conv = self.get_conversation(request.session_id)  # ALSO
        ids = torch.tensor([request.token_ids], device="cuda")
        reply = []
        for _ in range(self.max_new_tokens):
            out = self.model(input_ids=ids, past_key_values=conv.past_key_values, use_cache=True)  # ALSO
            ids = out.logits[:, -1].argmax(-1, keepdim=True)
            reply.append(ids.item())
        conv.turns += 1
        return reply

    def run(self):
        while True:
            request = self.requests.get()
            if request is None:
                return
            try:
                request.future.set_result(self.generate(request))
            except Exception as exc:
                request.future.set_exception(exc)

    def submit(self, session_id, token_ids):
        request = ChatRequest(session_id, token_ids)
        self.requests.put(request)
        return request.future


class ChatClient:
    def __init__(self, worker, rnd):
        self.worker, self.rnd = worker, rnd
        self.session_id = uuid.UUID(int=rnd.getrandbits(128)).hex

    def say(self, n_tokens):
        tokens = [self.rnd.randrange(256) for _ in range(n_tokens)]
        return self.worker.submit(self.session_id, tokens).result(timeout=60)


def main():
    torch.manual_seed(0)
    rnd = random.Random(0)
    worker = ModelWorker()
    worker.start()
    answered = 0
    for _ in range(50):
        client = ChatClient(worker, rnd)
        for _turn in range(rnd.choice((1, 2))):
            answered += len(client.say(rnd.randint(40, 80)))
    worker.requests.put(None)
    worker.join()
    print("tokens answered", answered)


if __name__ == "__main__":
    main()
