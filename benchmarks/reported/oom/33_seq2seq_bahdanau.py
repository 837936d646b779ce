# CARD: 12GiB
# KNOBS: BATCH=64 MAX_SRC=400 DOT AUTOCAST CHECKPOINT=BahdanauAttention CHUNKS OPT FUSED
# EXPERT: additive attention keeps (batch, source, hidden) tanh energies for each decoder step; dot-product attention, checkpoint the attention, shorter sources or smaller batch (bucket by length); the optimizer or a chunked loss is not enough
# Source: attention models in ASR/summarization that need input length x output length of memory, advice to drop long sentences (espnet/espnet 292, harvardnlp/seq2seq-attn 65)
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

import knobs

PAD, SOS, EOS = 0, 1, 2
VOCAB = 30_000
HID = 512
BATCH = int(os.environ.get("BATCH", 64))
MAX_SRC = int(os.environ.get("MAX_SRC", 400))
MAX_TGT = 100
DOT = os.environ.get("DOT", "0") == "1"
random.seed(1)


class Encoder(nn.Module):
    def __init__(self, emb=256, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, emb, padding_idx=PAD)
        self.rnn = nn.LSTM(emb, HID // 2, layers, bidirectional=True, batch_first=True, dropout=0.2)

    def forward(self, src):
        out, _ = self.rnn(self.embedding(src))
        return out


class BahdanauAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.Wa = nn.Linear(HID, HID)
        self.Ua = nn.Linear(HID, HID)
        self.Va = nn.Linear(HID, 1)

    def forward(self, query, keys, mask):
        scores = self.Va(torch.tanh(self.Wa(query).unsqueeze(1) + self.Ua(keys))).squeeze(2)
        weights = F.softmax(scores.masked_fill(mask, -1e4), dim=-1)
        return torch.bmm(weights.unsqueeze(1), keys).squeeze(1)


class DotAttention(nn.Module):
    def forward(self, query, keys, mask):
        scores = torch.bmm(keys, query.unsqueeze(2)).squeeze(2)
        weights = F.softmax(scores.masked_fill(mask, -1e4), dim=-1)
        return torch.bmm(weights.unsqueeze(1), keys).squeeze(1)


class AttnDecoder(nn.Module):
    def __init__(self, emb=256):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, emb, padding_idx=PAD)
        self.attention = DotAttention() if DOT else BahdanauAttention()
        self.cell = nn.LSTMCell(emb + HID, HID)
        self.out = nn.Linear(2 * HID, VOCAB)

    def forward(self, memory, mask, target):
        h = memory.mean(1)
        c = torch.zeros_like(h)
        states = []
        for t in range(target.size(1)):
            context = self.attention(h, memory, mask)
            h, c = self.cell(torch.cat([self.embedding(target[:, t]), context], 1), (h, c))
            states.append(torch.cat([h, context], 1))
        return self.out(torch.stack(states, 1))


def make_corpus(n):
    pairs = []
    for _ in range(n):
        s, t = random.randint(MAX_SRC // 2, MAX_SRC), random.randint(MAX_TGT // 2, MAX_TGT)
        pairs.append((torch.randint(3, VOCAB, (s,)), torch.randint(3, VOCAB, (t,))))
    return pairs


def batches(pairs):
    for i in range(0, len(pairs), BATCH):
        src, tgt = zip(*pairs[i:i + BATCH])
        tgt_in = [torch.cat([torch.tensor([SOS]), t]) for t in tgt]
        tgt_out = [torch.cat([t, torch.tensor([EOS])]) for t in tgt]
        yield [pad_sequence(x, batch_first=True, padding_value=PAD) for x in (src, tgt_in, tgt_out)]


encoder, decoder = Encoder().cuda(), AttnDecoder().cuda()
knobs.apply(decoder)
encoder_optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
decoder_optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-3)

for epoch in range(1):
    for n, (src, tin, tout) in enumerate(batches(make_corpus(3 * BATCH))):
        mask = (src == PAD).cuda()
        src, tin, tout = src.cuda(), tin.cuda(), tout.cuda()
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        with knobs.autocast():
            logits = decoder(encoder(src), mask, tin)
            loss = F.cross_entropy(logits.view(-1, VOCAB), tout.view(-1), ignore_index=PAD)
        loss.backward()
        for net in (encoder, decoder):
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        encoder_optimizer.step()
        decoder_optimizer.step()
        print(f"epoch {epoch} batch {n} ({src.size(1)} x {tin.size(1)}) loss {loss.item():.3f}")

print("PEAK", torch.cuda.max_memory_allocated())
