# kind: the hidden state is carried into the next call undetached, so the graph of all batches is kept; after pytorch/pytorch issue 2198
import argparse

import torch
import torch.nn as nn


class SequenceModel(nn.Module):
    def __init__(self, input_size, hidden_size, num_layers, rnn_type="LSTM"):
        super().__init__()
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.rnn_type = rnn_type
        self.rnn = getattr(nn, rnn_type)(input_size, hidden_size, num_layers)

    def init_hidden(self, bsz, device):
        h = torch.zeros(self.num_layers, bsz, self.hidden_size, device=device)
        return (h, h.clone()) if self.rnn_type == "LSTM" else h

    def forward(self, data, hidden):
        return self.rnn(data, hidden)


def make_batches(n, seq_len, bsz, input_size):
    for _ in range(n):
        yield torch.rand(seq_len, bsz, input_size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rnn", default="LSTM", choices=["LSTM", "GRU", "RNN"])
    parser.add_argument("--seq-len", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--input-size", type=int, default=32)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--iters", type=int, default=80)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda")
    model = SequenceModel(args.input_size, args.hidden_size, 2, args.rnn).to(device)
    hidden = model.init_hidden(args.batch_size, device)
    total = 0.0
    for i, batch in enumerate(make_batches(args.iters, args.seq_len, args.batch_size, args.input_size)):
        data = batch.to(device)
        out, hidden = model(data, hidden)  # LEAK
        total += out.mean().item()
        if i % 20 == 0:
            print("iter", i, "mean activation", total / (i + 1))


if __name__ == "__main__":
    main()
