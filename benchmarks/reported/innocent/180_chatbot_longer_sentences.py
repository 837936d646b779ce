# kind: sentences get longer from batch to batch; after ywk991112/pytorch-chatbot issue 15
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, SOS, EOS = 0, 1, 2
VOCAB = 400


class EncoderRNN(nn.Module):
    def __init__(self, embedding, hidden):
        super().__init__()
        self.embedding = embedding
        self.gru = nn.GRU(hidden, hidden, bidirectional=True)
        self.hidden = hidden

    def forward(self, seqs):
        out, hidden = self.gru(self.embedding(seqs))
        return out[:, :, :self.hidden] + out[:, :, self.hidden:], hidden[:1].contiguous()


class LuongAttnDecoderRNN(nn.Module):
    def __init__(self, embedding, hidden, vocab):
        super().__init__()
        self.embedding = embedding
        self.gru = nn.GRU(hidden, hidden)
        self.concat = nn.Linear(hidden * 2, hidden)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, inp, hidden, enc):
        rnn_out, hidden = self.gru(self.embedding(inp), hidden)
        attn = F.softmax((rnn_out * enc).sum(2).t(), dim=1)[:, None]
        context = attn.bmm(enc.transpose(0, 1)).transpose(0, 1)
        cat = torch.tanh(self.concat(torch.cat((rnn_out, context), 2)))
        return self.out(cat[0]), hidden


def batch_pairs(step, n_steps, batch_size, rng):
    """pairs sorted by length, as the reporter did with larger MAX_LENGTH"""
    longest = 4 + 26 * min(step, n_steps // 2) // (n_steps // 2)
    ls = [rng.randint(2, longest) for _ in range(batch_size)]
    src = torch.zeros(max(ls), batch_size, dtype=torch.long)
    for j, l in enumerate(ls):
        src[:l, j] = torch.randint(3, VOCAB, (l,))
    return src, src.clone()


def train(encoder, decoder, enc_opt, dec_opt, src, tgt, device):
    src, tgt = src.to(device), tgt.to(device)
    enc_opt.zero_grad()
    dec_opt.zero_grad()
    enc_out, hidden = encoder(src)
    inp = torch.full((1, src.shape[1]), SOS, device=device)
    loss = 0
    for t in range(tgt.shape[0]):
        logits, hidden = decoder(inp, hidden, enc_out)
        loss = loss + F.cross_entropy(logits, tgt[t], ignore_index=PAD)
        inp = tgt[t][None]
    loss.backward()
    nn.utils.clip_grad_norm_(encoder.parameters(), 50.0)
    nn.utils.clip_grad_norm_(decoder.parameters(), 50.0)
    enc_opt.step()
    dec_opt.step()
    return loss.item() / tgt.shape[0]


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    device = torch.device("cuda")
    embedding = nn.Embedding(VOCAB, 64)
    encoder = EncoderRNN(embedding, 64).to(device)
    decoder = LuongAttnDecoderRNN(embedding, 64, VOCAB).to(device)
    enc_opt = torch.optim.Adam(encoder.parameters(), lr=1e-4)
    dec_opt = torch.optim.Adam(decoder.parameters(), lr=5e-4)
    n_steps = 60
    perplexity = []
    for step in range(n_steps):
        src, tgt = batch_pairs(step, n_steps, 16, rng)
        loss = train(encoder, decoder, enc_opt, dec_opt, src, tgt, device)
        perplexity.append(loss)
        if step % 20 == 0:
            print(step, sum(perplexity) / len(perplexity))


if __name__ == "__main__":
    main()
