# kind: recurrent state carried from chunk to chunk with its graph in a service without no_grad; from forum posts on streaming speech
import torch
from torch import nn


class KeywordSpotter(nn.Module):
    def __init__(self, n_mels=40, hidden=128, n_words=12):
        super().__init__()
        self.proj = nn.Linear(n_mels, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.out = nn.Linear(hidden, n_words)

    def forward(self, chunk, state):
        scores = []
        for t in range(chunk.size(1)):
            state = self.cell(torch.tanh(self.proj(chunk[:, t])), state)
            scores.append(self.out(state))
        return torch.stack(scores, dim=1), state


class StreamingService:
    """Takes 40 ms chunks from several microphones and keeps the state between calls."""

    def __init__(self, model, streams=64, hidden=128, device="cuda"):
        self.model = model.to(device).eval()
        self.device = device
        self.state = torch.zeros(streams, hidden, device=device)
        self.hits = [0] * streams

    def push(self, chunk):
        chunk = chunk.to(self.device)
        scores, state = self.model(chunk, self.state)  # ALSO
        self.state = state  # LEAK
        words = scores.mean(dim=1).argmax(dim=-1)
        for i, w in enumerate(words.tolist()):
            if w == 3:
                self.hits[i] += 1
        return words.cpu()


def microphone(n_chunks, streams=64, frames=4, n_mels=40):
    g = torch.Generator().manual_seed(0)
    for _ in range(n_chunks):
        yield torch.randn(streams, frames, n_mels, generator=g)


def main():
    service = StreamingService(KeywordSpotter())
    for i, chunk in enumerate(microphone(120)):
        service.push(chunk)
        if i % 25 == 0:
            print("chunk", i, "hits so far", sum(service.hits))


if __name__ == "__main__":
    main()
