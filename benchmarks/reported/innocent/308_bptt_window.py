# kind: https://discuss.pytorch.org/t/gpu-memory-increase-while-i-wanna-to-backward-with-accumulative-loss/43284: losses are summed over a window of 40 frames before one backward
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"
WINDOW = 40


class ConvGRUCell(nn.Module):
    def __init__(self, cin, hidden):
        super().__init__()
        self.gates = nn.Conv2d(cin + hidden, 2 * hidden, 3, padding=1)
        self.cand = nn.Conv2d(cin + hidden, hidden, 3, padding=1)

    def forward(self, x, h):
        z, r = torch.sigmoid(self.gates(torch.cat([x, h], 1))).chunk(2, 1)
        n = torch.tanh(self.cand(torch.cat([x, r * h], 1)))
        return (1 - z) * h + z * n


class Nowcast(nn.Module):
    """Predicts the next radar picture from the last one and a state."""

    def __init__(self, hidden=24):
        super().__init__()
        self.hidden = hidden
        self.inp = nn.Conv2d(1, hidden, 3, padding=1)
        self.cell = ConvGRUCell(hidden, hidden)
        self.out = nn.Conv2d(hidden, 1, 1)

    def init(self, batch, size):
        return torch.zeros(batch, self.hidden, size, size, device=device)

    def forward(self, frame, state):
        state = self.cell(F.relu(self.inp(frame)), state)
        return self.out(state), state


def radar(n, batch=2, size=48):
    for _ in range(n):
        yield torch.rand(batch, 1, size, size, device=device)


def main():
    model = Nowcast().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    state, total, previous = model.init(2, 48), 0.0, None
    for i, frame in enumerate(radar(4 * WINDOW + 1)):
        if previous is not None:
            pred, state = model(previous, state)
            total = total + F.mse_loss(pred, frame)
        previous = frame
        if i % 10 == 0:
            print(f"frame {i}: {torch.cuda.memory_allocated() / 2**20:.2f} MiB")
        if i and i % WINDOW == 0:
            loss = total / WINDOW
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"window {i // WINDOW}: {loss.item():.5f}")
            state, total = state.detach(), 0.0


if __name__ == "__main__":
    main()
