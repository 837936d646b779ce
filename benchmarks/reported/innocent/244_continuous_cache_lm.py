# kind: innocent, neural cache language model concatenates hidden states to its history and trims it to the window of 2000; in the manner of salesforce/awd-lstm-lm pointer.py
import torch
import torch.nn as nn
import torch.nn.functional as F


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp=64, nhid=128):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid = nhid

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.encoder(x), hidden)
        return self.decoder(out.view(-1, self.nhid)), hidden, out.view(-1, self.nhid)

    def init_hidden(self, bsz):
        w = next(self.parameters())
        return w.new_zeros(1, bsz, self.nhid), w.new_zeros(1, bsz, self.nhid)


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


class args:
    window = 2000
    bptt = 40
    theta = 0.66
    lambdasm = 0.13
    ntokens = 300
    chunks = 110


def evaluate(model, data_source):
    model.eval()
    total_loss = 0.0
    hidden = model.init_hidden(1)
    next_word_history = None
    pointer_history = None
    for n, i in enumerate(range(0, data_source.size(0) - 1 - args.bptt, args.bptt)):
        data, targets = data_source[i:i + args.bptt], data_source[i + 1:i + 1 + args.bptt].view(-1)
        output, hidden, rnn_out = model(data, hidden)
        start_idx = len(next_word_history) if next_word_history is not None else 0
        one_hot = F.one_hot(targets, args.ntokens).float()
        next_word_history = one_hot if next_word_history is None else torch.cat([next_word_history, one_hot])
        pointer_history = rnn_out if pointer_history is None else torch.cat([pointer_history, rnn_out])

        softmax_output = F.softmax(output, dim=-1)
        loss = 0
        for idx in range(0, len(softmax_output), 8):
            p = softmax_output[idx]
            lo = max(0, start_idx + idx - args.window)
            hi = start_idx + idx
            if hi > lo:
                valid = next_word_history[lo:hi]
                attention = F.softmax(args.theta * torch.mv(pointer_history[lo:hi], rnn_out[idx]), 0).view(-1, 1)
                p = args.lambdasm * (attention * valid).sum(0) + (1 - args.lambdasm) * p
            loss = loss - torch.log(p[targets[idx]].clamp(min=1e-12))
        total_loss += loss.item()
        hidden = repackage_hidden(hidden)
        next_word_history = next_word_history[-args.window:].clone()
        pointer_history = pointer_history[-args.window:].clone()
        if n % 30 == 0:
            print(f"chunk {n} history {len(pointer_history)} loss {total_loss:.3f}")
    return total_loss


if __name__ == "__main__":
    torch.manual_seed(1111)
    corpus = torch.randint(0, args.ntokens, (args.bptt * args.chunks + 2, 1), device="cuda")
    lm = RNNModel(args.ntokens).cuda()
    with torch.no_grad():
        print("loss", evaluate(lm, corpus))
