# kind: buffers of a worker go back to their pool through a weakref callback on the object they were lent to, which is the client's connection and not its request, so that callbacks with their buffers pile up while a client stays connected; from pooling code with weakref callbacks (numba / cupy style owners) and the weakref documentation
import asyncio
import weakref

import torch
import torch.nn as nn
import torch.nn.functional as F


class BufferPool:
    """Lends out feature buffers; a buffer is free again as soon as its borrower is gone."""

    def __init__(self, shape, device):
        self.shape, self.device = shape, device
        self.free = []
        self.lent = 0
        self._watch = {}

    def _take(self):
        if self.free:
            return self.free.pop()
        return torch.empty(self.shape, device=self.device)

    def _watch_borrower(self, borrower, buffer):
        ticket = self.lent

        def give_back(ref):
            del self._watch[ticket]
            self.free.append(buffer)

        self._watch[ticket] = weakref.ref(borrower, give_back)  # LEAK

    def lend(self, borrower):
        buffer = self._take()
        self.lent += 1
        self._watch_borrower(borrower, buffer)
        return buffer


class Connection:
    def __init__(self, name):
        self.name = name
        self.inbox = asyncio.Queue(maxsize=4)
        self.answers = []

    async def send(self, answer):
        self.answers.append(answer)


class Request:
    def __init__(self, connection, audio):
        self.connection, self.audio = connection, audio


class KeywordSpotter(nn.Module):
    def __init__(self, mels=64, words=8):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(mels, 48, 5, stride=2), nn.ReLU(), nn.Conv1d(48, words, 3))

    def forward(self, x):
        return self.net(x).amax(-1)


class Server:
    def __init__(self, frames=900, mels=64, device="cuda"):
        self.device = device
        self.model = KeywordSpotter(mels).to(device).eval()
        self.window = torch.hann_window(126, device=device)
        self.pool = BufferPool((1, mels, frames), device)

    def _features(self, request):
        spec = torch.stft(request.audio.to(self.device), 126, hop_length=16, window=self.window, return_complex=True)
        out = self.pool.lend(request.connection)  # ALSO
        n = min(out.shape[-1], spec.shape[-1])
        out.zero_()
        out[0, :, :n] = spec.abs().log1p()[:, :n]
        return out

    @torch.inference_mode()
    def recognise(self, request):
        scores = self.model(self._features(request))
        return F.softmax(scores, -1).argmax(-1).item()

    async def serve(self, connection):
        while (audio := await connection.inbox.get()) is not None:
            word = self.recognise(Request(connection, audio))
            await connection.send(word)


async def microphone(connection, clips, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(clips):
        await connection.inbox.put(torch.randn(14000, generator=g))
    await connection.inbox.put(None)


async def main(clients=3, clips=60):
    server = Server()
    connections = [Connection(f"mic-{i}") for i in range(clients)]
    await asyncio.gather(
        *(server.serve(c) for c in connections),
        *(microphone(c, clips, i) for i, c in enumerate(connections)))
    for c in connections:
        print(c.name, "heard", len(c.answers), "words,", len(set(c.answers)), "different")
    print("buffers lent:", server.pool.lent, "free:", len(server.pool.free))


if __name__ == "__main__":
    torch.manual_seed(0)
    asyncio.run(main())
