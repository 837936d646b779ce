# kind: losses with graphs collected in a list for an accumulation window, summed and cleared; from forum posts on gradient accumulation
import argparse
import torch
import torch.nn as nn


def parse_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--accumulate", type=int, default=8)
    ap.add_argument("--updates", type=int, default=90)
    ap.add_argument("--micro-batch", type=int, default=32)
    return ap.parse_args()


class CharRNN(nn.Module):
    def __init__(self, vocab=64, hidden=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, hidden)
        self.ih = nn.Linear(hidden, hidden)
        self.hh = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, ids):
        h = torch.zeros(ids.size(0), self.hh.in_features, device=ids.device)
        states = []
        for e in self.ih(self.emb(ids)).unbind(1):
            h = torch.tanh(e + self.hh(h))
            states.append(h)
        return self.out(torch.stack(states, 1))


class Window:
    def __init__(self, size):
        self.size = size
        self.losses = []
        self.weights = []

    def add(self, loss, n_tokens):
        self.losses.append(loss)
        self.weights.append(n_tokens)
        return len(self.losses) == self.size

    def close(self):
        total = sum(self.weights)
        loss = sum(l * (n / total) for l, n in zip(self.losses, self.weights))
        self.losses.clear()
        self.weights.clear()
        return loss


def main():
    args = parse_args()
    device = torch.device("cuda")
    model = CharRNN().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    window = Window(args.accumulate)
    done = 0
    while done < args.updates:
        n = int(torch.randint(6, 10, ()))
        ids = torch.randint(0, 64, (args.micro_batch, n), device=device).cumsum(1) % 64
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        if window.add(loss, ids[:, 1:].numel()):
            opt.zero_grad()
            total = window.close()
            total.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            done += 1
            if done % 20 == 0:
                print(f"update {done}: {total.item():.3f}")


if __name__ == "__main__":
    main()
