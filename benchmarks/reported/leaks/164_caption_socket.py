# kind: a captioning client comes back from a lost connection by calling its own listen() again, the frames of all earlier calls with their feature windows stay on the stack; after websocket-client/websocket-client PR 854
import random

import torch
import torch.nn as nn

device = "cuda"
MELS = 80
CHUNK = 20
WINDOW = 2400


class FakeSocket:
    """Stands for the audio socket of the studio: sends chunks of log-mel frames
    and is cut off by the load balancer every now and then."""

    def __init__(self, rng):
        self.rng = rng
        self.left = rng.randint(3, 6)

    def recv(self):
        if self.left == 0:
            raise ConnectionResetError("connection closed by peer")
        self.left -= 1
        return torch.randn(CHUNK, MELS)


class Captioner(nn.Module):
    def __init__(self, classes=64):
        super().__init__()
        self.enc = nn.GRU(MELS, 96, batch_first=True)
        self.out = nn.Linear(96, classes)

    def forward(self, feats, state=None):
        h, state = self.enc(feats, state)
        return self.out(h), state


class CaptionStream:
    def __init__(self, model, total_chunks, seed=0):
        self.model = model
        self.rng = random.Random(seed)
        self.remaining = total_chunks
        self.text = []
        self.reconnects = 0

    def emit(self, logits):
        ids = logits.argmax(-1)
        keep = torch.ones_like(ids, dtype=torch.bool)
        keep[1:] = ids[1:] != ids[:-1]
        self.text.extend(ids[keep].tolist())

    def listen(self):
        socket = FakeSocket(self.rng)
        window = torch.zeros(WINDOW, MELS, device=device)  # ALSO
        state = None
        try:
            while self.remaining:
                chunk = socket.recv().to(device)
                window = torch.roll(window, -CHUNK, 0)  # ALSO
                window[-CHUNK:] = chunk
                mean, std = window.mean(0), window.std(0) + 1e-3
                logits, state = self.model(((chunk - mean) / std).unsqueeze(0), state)
                self.emit(logits[0])
                self.remaining -= 1
        except ConnectionResetError:
            self.reconnects += 1
            if self.reconnects % 10 == 0:
                print(f"reconnect {self.reconnects}, {self.remaining} chunks to go, {len(self.text)} symbols")
            self.listen()  # LEAK


def main():
    torch.manual_seed(0)
    model = Captioner().to(device).eval()
    stream = CaptionStream(model, total_chunks=400)
    with torch.inference_mode():
        stream.listen()
    print(f"{len(stream.text)} symbols after {stream.reconnects} reconnects")


if __name__ == "__main__":
    main()
