"""Small models of the usual kinds, and batches for them."""

import torch
from torch import nn
from torch.nn import functional

DEVICE = "cuda"
STEPS = 5


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = functional.softmax(q @ k.transpose(1, 2), dim=-1)
        return x + self.mlp(x + scores @ v)


class GPT(nn.Module):
    def __init__(self, vocabulary=512, width=64, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class CNN(nn.Module):
    def __init__(self, channels=16, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.body = nn.Conv2d(channels, channels, 3, padding=1)
        self.head = nn.Linear(channels, classes)

    def forward(self, images):
        x = functional.relu(self.norm(self.stem(images)))
        x = functional.relu(self.body(x)) + x
        return self.head(x.mean(dim=(2, 3)))


class LSTM(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.head = nn.Linear(width, width)

    def forward(self, sequence, state):
        outputs = []
        for x in sequence.unbind(1):
            state = self.cell(x, state)
            outputs.append(self.head(state[0]))
        return torch.stack(outputs, dim=1), state


class Denoiser(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.time = nn.Linear(1, channels)
        self.down = nn.Conv2d(3, channels, 3, padding=1)
        self.up = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, images, time):
        x = self.down(images) + self.time(time)[:, :, None, None]
        return self.up(functional.silu(x))


def tokens(batch=4, length=64, vocabulary=512):
    return torch.randint(0, vocabulary, (batch, length), device=DEVICE)


def images(batch=8, size=32):
    return torch.randn(batch, 3, size, size, device=DEVICE)


def labels(batch=8, classes=10):
    return torch.randint(0, classes, (batch,), device=DEVICE)


def sequences(batch=8, length=6, width=64):
    return torch.randn(batch, length, width, device=DEVICE)


def zero_state(batch=8, width=64):
    return tuple(torch.zeros(batch, width, device=DEVICE) for _ in range(2))


def next_token_loss(logits, batch):
    flat = logits[:, :-1].reshape(-1, logits.shape[-1])
    return functional.cross_entropy(flat, batch[:, 1:].reshape(-1))
