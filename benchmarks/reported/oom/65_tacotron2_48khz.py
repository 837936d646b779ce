# CARD: 8GiB
# KNOBS: BATCH=20 MAX_FRAMES PER_STEP=1 AUTOCAST CHECKPOINT=Attention
# EXPERT: the fourth batch has a clip of 1840 frames: each decoder step keeps the attention's (batch, characters, 128) tensors and the LSTM gates; enough: CHECKPOINT=Attention, PER_STEP=2, MAX_FRAMES=1000, BATCH=10; not enough: AUTOCAST (worse than fp32: the encoder memory is cast anew in each decoder step and each copy is saved), though CHECKPOINT=Attention with AUTOCAST is the smallest
# Source: NVIDIA/tacotron2 213 (48 kHz audio on an 8 GB RTX 2080, out of memory in decode() even with batch size 2, often only some minutes into the training); plain PyTorch
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

BATCH = int(os.environ.get("BATCH", 20))
MAX_FRAMES = int(os.environ.get("MAX_FRAMES", 100000))  # longer clips are cut
PER_STEP = int(os.environ.get("PER_STEP", 1))  # mel frames per decoder step
N_MEL, N_SYMBOLS, DIM = 80, 148, 512


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Sequential(nn.Conv1d(DIM, DIM, 5, padding=2), nn.BatchNorm1d(DIM)) for _ in range(3))
        self.lstm = nn.LSTM(DIM, DIM // 2, 1, batch_first=True, bidirectional=True)

    def forward(self, x):
        for conv in self.convs:
            x = F.dropout(F.relu(conv(x)), 0.5, self.training)
        return self.lstm(x.transpose(1, 2))[0]


class Attention(nn.Module):
    """Location-sensitive attention."""

    def __init__(self, rnn_dim=1024, dim=128, filters=32, kernel=31):
        super().__init__()
        self.query = nn.Linear(rnn_dim, dim, bias=False)
        self.v = nn.Linear(dim, 1, bias=False)
        self.location_conv = nn.Conv1d(2, filters, kernel, padding=kernel // 2, bias=False)
        self.location_dense = nn.Linear(filters, dim, bias=False)

    def forward(self, hidden, memory, processed_memory, weights_cat):
        location = self.location_dense(self.location_conv(weights_cat).transpose(1, 2))
        energies = self.v(torch.tanh(self.query(hidden.unsqueeze(1)) + location + processed_memory)).squeeze(-1)
        weights = F.softmax(energies, dim=1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1), weights


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.prenet = nn.ModuleList([nn.Linear(N_MEL * PER_STEP, 256, bias=False), nn.Linear(256, 256, bias=False)])
        self.attention_rnn = nn.LSTMCell(256 + DIM, 1024)
        self.attention = Attention()
        self.memory_layer = nn.Linear(DIM, 128, bias=False)
        self.decoder_rnn = nn.LSTMCell(1024 + DIM, 1024)
        self.projection = nn.Linear(1024 + DIM, N_MEL * PER_STEP)
        self.gate = nn.Linear(1024 + DIM, 1)

    def forward(self, memory, mels):
        b, t_in, _ = memory.shape
        frames = mels.transpose(1, 2).reshape(b, -1, N_MEL * PER_STEP).transpose(0, 1)
        x = torch.cat([torch.zeros_like(frames[:1]), frames[:-1]])
        for layer in self.prenet:
            x = F.dropout(F.relu(layer(x)), 0.5, True)
        att_h, att_c, dec_h, dec_c = (memory.new_zeros(b, 1024) for _ in range(4))
        weights, weights_cum = memory.new_zeros(b, t_in), memory.new_zeros(b, t_in)
        context = memory.new_zeros(b, DIM)
        processed = self.memory_layer(memory)
        mel_outputs, gates, alignments = [], [], []
        for frame in x:
            att_h, att_c = self.attention_rnn(torch.cat([frame, context], -1), (att_h, att_c))
            att_h = F.dropout(att_h, 0.1, self.training)
            context, weights = self.attention(att_h, memory, processed, torch.stack([weights, weights_cum], 1))
            weights_cum = weights_cum + weights
            dec_h, dec_c = self.decoder_rnn(torch.cat([att_h, context], -1), (dec_h, dec_c))
            dec_h = F.dropout(dec_h, 0.1, self.training)
            out = torch.cat([dec_h, context], 1)
            mel_outputs.append(self.projection(out))
            gates.append(self.gate(out))
            alignments.append(weights)
        mel = torch.stack(mel_outputs, 1).reshape(b, -1, N_MEL).transpose(1, 2)
        return mel, torch.cat(gates, 1), torch.stack(alignments, 1)


class Tacotron2(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(N_SYMBOLS, DIM)
        self.encoder, self.decoder = Encoder(), Decoder()
        sizes = [N_MEL, 512, 512, 512, 512, N_MEL]
        self.postnet = nn.ModuleList(nn.Sequential(nn.Conv1d(a, b, 5, padding=2), nn.BatchNorm1d(b))
                                     for a, b in zip(sizes[:-1], sizes[1:]))

    def forward(self, text, mels):
        memory = self.encoder(self.embedding(text).transpose(1, 2))
        mel, gate, align = self.decoder(memory, mels)
        x = mel
        for i, conv in enumerate(self.postnet):
            x = F.dropout(torch.tanh(conv(x)) if i < 4 else conv(x), 0.5, self.training)
        return mel, mel + x, gate, align


def batches():
    """(characters, mel frames) of the longest clip in each batch; 48 kHz with a hop of 256 gives 187 frames a second."""
    for chars, frames in [(62, 660), (85, 900), (71, 740), (170, 1840)]:
        frames = min(frames, MAX_FRAMES) // PER_STEP * PER_STEP
        yield (torch.randint(N_SYMBOLS, (BATCH, chars)), torch.randn(BATCH, N_MEL, frames),
               torch.zeros(BATCH, frames // PER_STEP))


torch.manual_seed(0)
model = Tacotron2().cuda()
knobs.apply(model)
model.train()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
for i, (text, mels, gate_target) in enumerate(batches()):
    text, mels, gate_target = text.cuda(), mels.cuda(), gate_target.cuda()
    optimizer.zero_grad()
    with knobs.autocast():
        mel, mel_post, gate, _ = model(text, mels)
        loss = F.mse_loss(mel, mels) + F.mse_loss(mel_post, mels) + F.binary_cross_entropy_with_logits(gate, gate_target)
    loss.backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"step {i}: {mels.shape[-1]} frames, loss {loss.item():.4f}, grad norm {grad_norm.item():.3f}")
