# CARD: 11GiB
# KNOBS: BATCH=60 CHUNKS=1 OPT
# EXPERT: logits of 70 x 60 tokens over 267735 words (4.2 GiB) plus their log-softmax and gradient; smaller batch or the loss by chunks
# CHUNKS=<int>: decoder and cross-entropy over so many chunks of tokens, recomputed in backward; OPT=adam|adafactor|sgd
import os
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

batch_size = int(os.environ.get('BATCH', 60))
chunks = int(os.environ.get('CHUNKS', 1))
bptt = 70
ntokens = 267735
emsize, nhid, nlayers = 200, 512, 2
clip = 0.25


class RNNModel(nn.Module):
    """Container module with an encoder, a recurrent module, and a (tied) decoder."""

    def __init__(self):
        super(RNNModel, self).__init__()
        self.drop = nn.Dropout(0.4)
        self.encoder = nn.Embedding(ntokens, emsize)
        self.rnn = nn.LSTM(emsize, nhid, nlayers, dropout=0.2)
        self.project = nn.Linear(nhid, emsize)
        self.decoder_bias = nn.Parameter(torch.zeros(ntokens))

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        return self.project(self.drop(output)), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(nlayers, bsz, nhid), weight.new_zeros(nlayers, bsz, nhid))


def decode_and_loss(h, targets, weight, bias):
    return F.cross_entropy(F.linear(h, weight, bias), targets, reduction='sum')


def criterion(model, output, targets):
    h = output.view(-1, emsize)
    if chunks == 1:
        return decode_and_loss(h, targets, model.encoder.weight, model.decoder_bias) / len(targets)
    total = 0.
    for hc, tc in zip(h.chunk(chunks), targets.chunk(chunks)):
        total = total + checkpoint(decode_and_loss, hc, tc, model.encoder.weight, model.decoder_bias,
                                   use_reentrant=False)
    return total / len(targets)


def repackage_hidden(h):
    """Wraps hidden states in new Tensors, to detach them from their history."""
    return tuple(v.detach() for v in h)


def batchify(n_batches):
    return torch.randint(ntokens, (n_batches * bptt + 1, batch_size)).cuda()


def get_batch(source, i):
    return source[i:i + bptt], source[i + 1:i + 1 + bptt].reshape(-1)


def train(model, data, optimizer):
    model.train()
    hidden = model.init_hidden(batch_size)
    for batch, i in enumerate(range(0, data.size(0) - 1, bptt)):
        inputs, targets = get_batch(data, i)
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden = model(inputs, hidden)
        loss = criterion(model, output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        print('| batch {} | loss {:5.2f} | ppl {:8.2f}'.format(batch, loss.item(), math.exp(min(loss.item(), 20))))


torch.manual_seed(1111)
with torch.device('cuda'):
    model = RNNModel()
name = os.environ.get('OPT', 'adam').lower()
if name == 'adafactor':
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)
elif name == 'sgd':
    optimizer = torch.optim.SGD(model.parameters(), lr=20)
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train(model, batchify(3), optimizer)
print('PEAK', torch.cuda.max_memory_allocated())
