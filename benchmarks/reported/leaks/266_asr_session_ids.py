# kind: server keeps decoder states by integer session id, the close message carries the id as text, so pop(..., None) never finds one; own, in the manner of streaming ASR server issues (k2-fsa/sherpa, wenet)
import json
import random
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass
class StreamState:
    h: torch.Tensor
    left_context: torch.Tensor
    tokens: list = field(default_factory=list)
    n_frames: int = 0


class StreamingEncoder(nn.Module):
    CONTEXT = 192

    def __init__(self, n_mels=80, dim=128, layers=2, vocab=500):
        super().__init__()
        self.dim, self.layers = dim, layers
        self.proj = nn.Linear(n_mels, dim)
        self.mix = nn.Linear(2 * dim, dim)
        self.rnn = nn.GRU(dim, dim, layers, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def init_state(self, device):
        return StreamState(torch.zeros(self.layers, 1, self.dim, device=device),
                           torch.zeros(1, self.CONTEXT, self.dim, device=device))

    def forward(self, chunk, state):
        x = self.proj(chunk)
        memory = state.left_context.mean(1, keepdim=True).expand_as(x)
        x = torch.relu(self.mix(torch.cat([x, memory], -1)))
        y, state.h = self.rnn(x, state.h)
        state.left_context = torch.cat([state.left_context, x], 1)[:, -self.CONTEXT:].clone()
        state.n_frames += chunk.size(1)
        return self.out(y)


class AsrServer:
    def __init__(self, device="cuda"):
        self.device = device
        self.encoder = StreamingEncoder().to(device).eval()
        self.sessions = {}

    @torch.inference_mode()
    def on_message(self, session_id, message):
        msg = json.loads(message)
        if msg["type"] == "audio":
            state = self.sessions.get(session_id)
            if state is None:
                state = self.encoder.init_state(self.device)
                self.sessions[session_id] = state  # LEAK
            chunk = torch.randn(1, msg["frames"], 80, device=self.device)
            logits = self.encoder(chunk, state)
            state.tokens.extend(t for t in logits[0].argmax(-1).tolist() if t)
            return {"partial": len(state.tokens)}
        if msg["type"] == "close":
            state = self.sessions.pop(msg["session"], None)  # ALSO
            return {"final": state.tokens if state else []}
        raise ValueError(msg["type"])


def client(server, session_id, rng):
    """A caller who says something and hangs up."""
    for _ in range(rng.randint(2, 5)):
        server.on_message(session_id, json.dumps({"type": "audio", "frames": 16}))
    return server.on_message(session_id, json.dumps({"type": "close", "session": str(session_id)}))


if __name__ == "__main__":
    rng = random.Random(5)
    torch.manual_seed(5)
    server = AsrServer()
    for session_id in range(1000, 1160):
        client(server, session_id, rng)
        if session_id % 50 == 0:
            print(f"call {session_id}: {torch.cuda.memory_allocated() / 2**20:.1f} MiB")
