# CARD: 3GiB
# KNOBS: BATCH=<utterances>, CHUNKS=<parts of the batch in joint+loss, checkpointed>, CHECKPOINT=1 (encoder), AUTOCAST=1
# EXPERT: the joint makes B x T x U x V: compute joint and loss a few utterances at a time (chunks, checkpointed; pruned/fused RNN-T), smaller vocabulary
# from: https://github.com/espnet/espnet/issues/2921
import argparse
import atexit
import os

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=int(os.environ.get("BATCH", 8)))
    p.add_argument("--vocab", type=int, default=4233)
    p.add_argument("--frames", type=int, default=200)
    p.add_argument("--units", type=int, default=32)
    p.add_argument("--adim", type=int, default=512)
    p.add_argument("--elayers", type=int, default=12)
    p.add_argument("--joint-dim", type=int, default=512)
    p.add_argument("--chunks", type=int, default=int(os.environ.get("CHUNKS", 0)))
    return p.parse_args()


class Encoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Sequential(nn.Conv1d(80, args.adim, 3, 2, 1), nn.ReLU(),
                                   nn.Conv1d(args.adim, args.adim, 3, 2, 1), nn.ReLU())
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(args.adim, 8, 2048, 0.1, batch_first=True, norm_first=True)
            for _ in range(args.elayers))

    def forward(self, feats):
        x = self.embed(feats.transpose(1, 2)).transpose(1, 2)
        for layer in self.layers:
            if os.environ.get("CHECKPOINT"):
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return x


class Predictor(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.adim)
        self.rnn = nn.LSTM(args.adim, args.adim, batch_first=True)

    def forward(self, labels):
        sos = labels.new_zeros(labels.shape[0], 1)
        return self.rnn(self.embed(torch.cat([sos, labels], 1)))[0]


class Joint(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enc = nn.Linear(args.adim, args.joint_dim)
        self.dec = nn.Linear(args.adim, args.joint_dim, bias=False)
        self.out = nn.Linear(args.joint_dim, args.vocab)

    def forward(self, enc, dec):
        z = torch.tanh(self.enc(enc).unsqueeze(2) + self.dec(dec).unsqueeze(1))
        return self.out(z)


def rnnt_loss(logits, labels):
    """forward variables of Graves 2012, blank is 0"""
    logp = logits.float().log_softmax(-1)
    blank = logp[..., 0]
    emit = logp[:, :, :-1].gather(-1, labels[:, None, :, None].expand(-1, logp.shape[1], -1, 1)).squeeze(-1)
    # emit summed over u, so that a row is one logcumsumexp
    total = nn.functional.pad(emit.cumsum(-1), (1, 0))
    alpha = total[:, 0]
    for t in range(1, logits.shape[1]):
        alpha = torch.logcumsumexp(alpha + blank[:, t - 1] - total[:, t], -1) + total[:, t]
    return -(alpha[:, -1] + blank[:, -1, -1])


class Transducer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.encoder, self.predictor, self.joint = Encoder(args), Predictor(args), Joint(args)

    def joint_loss(self, enc, dec, labels):
        return rnnt_loss(self.joint(enc, dec), labels)

    def forward(self, feats, labels):
        enc, dec = self.encoder(feats), self.predictor(labels)
        if self.args.chunks:
            parts = zip(*(t.chunk(self.args.chunks) for t in (enc, dec, labels)))
            return torch.cat([checkpoint(self.joint_loss, *p, use_reentrant=False) for p in parts]).mean()
        return self.joint_loss(enc, dec, labels).mean()


def main():
    args = get_args()
    atexit.register(lambda: print("PEAK", torch.cuda.max_memory_allocated()))
    model = Transducer(args).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(3):
        feats = torch.randn(args.batch, args.frames * 4, 80).cuda()
        labels = torch.randint(1, args.vocab, (args.batch, args.units)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=os.environ.get("AUTOCAST") == "1"):
            loss = model(feats, labels)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        print("step", step, "loss", float(loss))


if __name__ == "__main__":
    main()
