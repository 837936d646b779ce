# CARD: 8GiB
# KNOBS: BATCH=256 AUTOCAST TBPTT CHECKPOINT=StackedCell CHUNKS OPT FUSED
# EXPERT: back-propagation through 600 time steps stores every step's gates; truncated BPTT (detach every 50-100 steps), shorter sequences
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

SEQ_LEN = 600
BATCH_SIZE = int(os.environ.get("BATCH", 256))
HIDDEN = 1024
LAYERS = 2
VOCAB = 256
# truncated back-propagation: number of time steps per backward (0: the whole sequence)
TBPTT = int(os.environ.get("TBPTT", 0))

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LayerNormLSTMCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.x2h = nn.Linear(input_size, 4 * hidden_size)
        self.h2h = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.ln = nn.LayerNorm(hidden_size)

    def forward(self, x, h, c):
        i, f, g, o = (self.x2h(x) + self.h2h(h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.ln(c))
        return h, c


class StackedCell(nn.Module):
    def __init__(self, input_size, hidden_size, num_layers):
        super().__init__()
        self.cells = nn.ModuleList(
            [LayerNormLSTMCell(input_size if k == 0 else hidden_size, hidden_size) for k in range(num_layers)])

    def forward(self, x, state):
        new_state = []
        for cell, (h, c) in zip(self.cells, state):
            h, c = cell(x, h, c)
            new_state.append((h, c))
            x = h
        return x, new_state


class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 256)
        self.rnn = StackedCell(256, HIDDEN, LAYERS)
        self.fc = nn.Linear(HIDDEN, VOCAB)

    def init_hidden(self, batch_size):
        zeros = torch.zeros(batch_size, HIDDEN, device=device)
        return [(zeros, zeros) for _ in range(LAYERS)]

    def forward(self, tokens, state):
        x = self.embed(tokens)
        outputs = []
        for t in range(tokens.size(1)):
            out, state = self.rnn(x[:, t], state)
            outputs.append(out)
        return self.fc(torch.stack(outputs, dim=1)), state


model = CharRNN().to(device)
knobs.apply(model)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
if os.environ.get("OPT") or os.environ.get("FUSED"):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

text = torch.randint(0, VOCAB, (BATCH_SIZE, 3 * SEQ_LEN + 1))

for step in range(3):
    chunk = text[:, step * SEQ_LEN:(step + 1) * SEQ_LEN + 1].to(device)
    inputs, targets = chunk[:, :-1], chunk[:, 1:]
    hidden = model.init_hidden(BATCH_SIZE)
    optimizer.zero_grad()
    total = 0.0
    for inp, tgt in zip(inputs.split(TBPTT or SEQ_LEN, dim=1), targets.split(TBPTT or SEQ_LEN, dim=1)):
        hidden = [(h.detach(), c.detach()) for h, c in hidden]
        with knobs.autocast():
            logits, hidden = model(inp, hidden)
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), tgt.reshape(-1))
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    print("step", step, "loss", total)

print("PEAK", torch.cuda.max_memory_allocated())
