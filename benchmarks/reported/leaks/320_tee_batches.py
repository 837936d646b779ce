# kind: https://discuss.pytorch.org/t/cuda-out-of-memory-after-more-than-8000-iterators/27253: itertools.tee of the stream of batches, and the second iterator is hardly read
from itertools import tee

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"


class Denoiser(nn.Module):
    """Speech enhancement: a mask on the spectrum."""

    def __init__(self, bins=129, hidden=128):
        super().__init__()
        self.rnn = nn.LSTM(bins, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.mask = nn.Linear(2 * hidden, bins)

    def forward(self, mag):
        return torch.sigmoid(self.mask(self.rnn(mag)[0])) * mag


class NoisySpeech:
    def __init__(self, n, batch=8, seconds=1, rate=16000):
        self.n, self.batch, self.samples = n, batch, seconds * rate
        self.window = torch.hann_window(256, device=device)

    def spectrum(self, wave):
        return torch.stft(wave, 256, 128, window=self.window, return_complex=True).abs().transpose(1, 2)

    def __iter__(self):
        for _ in range(self.n):
            clean = torch.randn(self.batch, self.samples, device=device)
            noise = 0.3 * torch.randn_like(clean)
            yield self.spectrum(clean + noise), self.spectrum(clean)


def show_example(model, example):
    noisy, clean = example
    with torch.no_grad():
        out = model(noisy[:1])
    return F.mse_loss(out, clean[:1]).item()


def main():
    model = Denoiser().to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    batches, examples = tee(NoisySpeech(70))  # LEAK
    example = next(examples)
    for step, (noisy, clean) in enumerate(batches):
        loss = F.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} example {show_example(model, example):.4f} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")
    print("other example:", show_example(model, next(examples)))


if __name__ == "__main__":
    main()
