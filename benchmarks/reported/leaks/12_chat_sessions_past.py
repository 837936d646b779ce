# kind: past_key_values of every chat session kept by a server that never closes sessions; from transformers / text-generation issues
import uuid
import torch
from transformers import GPT2Config, GPT2LMHeadModel


class ChatServer:
    def __init__(self, device="cuda"):
        cfg = GPT2Config(vocab_size=512, n_positions=256, n_embd=128, n_layer=4, n_head=4,
                         bos_token_id=0, eos_token_id=0)
        torch.manual_seed(0)
        self.device = device
        self.model = GPT2LMHeadModel(cfg).to(device).eval()
        self.sessions = {}

    def open(self):
        return uuid.uuid4().hex

    @torch.inference_mode()
    def reply(self, session_id, token_ids, max_new_tokens=4):
        past = self.sessions.get(session_id)
        ids = torch.tensor([token_ids], device=self.device)
        answer = []
        for _ in range(max_new_tokens):
            out = self.model(input_ids=ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            ids = out.logits[:, -1:].argmax(dim=-1)
            answer.append(ids.item())
        self.sessions[session_id] = past  # LEAK
        return answer


def client(n_users):
    """Each user says one or two sentences and goes away."""
    gen = torch.Generator().manual_seed(7)
    for u in range(n_users):
        turns = 1 + u % 2
        yield [torch.randint(1, 512, (90,), generator=gen).tolist() for _ in range(turns)]


def serve():
    server = ChatServer()
    answered = 0
    for turns in client(60):
        sid = server.open()
        for prompt in turns:
            text = server.reply(sid, prompt)
            answered += len(text)
    print("tokens sent", answered, "sessions", len(server.sessions))


serve()
