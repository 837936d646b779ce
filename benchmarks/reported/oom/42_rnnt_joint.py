# CARD: 12GiB
# KNOBS: BATCH=32 VOCAB=4233 SUB_BATCH AUTOCAST CHECKPOINT=Joiner,EncoderLayer CHECKPOINT_PATHS=encoder.layers.* OPT FUSED
# EXPERT: the joiner makes (batch, frames, labels + 1, vocabulary) logits, the transducer loss keeps one gradient of that size and makes more on the way (log-softmax, product in backward), 4.8 GiB each at the longest batch; it grows with the batches, which become longer; batch 16, bucketing by frames x labels, a smaller vocabulary, or the joiner and the loss a few utterances at a time (each recomputed); checkpointing the encoder layers is just enough; bf16 autocast (the loss stays fp32), checkpointing the joiner alone or another optimizer is not enough
# Source: espnet/espnet 2921 (transducer, table of tensors: 16 x 455 x 21 x 4233, it grows with the length of the batch), NVIDIA-NeMo/Speech 4618 (out of memory in joint_net with batch 8 on 12 GB)
import argparse
import math
import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import knobs


def get_parser():
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=int(os.environ.get("BATCH", 32)))
    p.add_argument("--vocab", type=int, default=int(os.environ.get("VOCAB", 4233)))
    p.add_argument("--sub-batch", type=int, default=int(os.environ.get("SUB_BATCH", 0)))
    p.add_argument("--elayers", type=int, default=8)
    p.add_argument("--eunits", type=int, default=2048)
    p.add_argument("--adim", type=int, default=512)
    p.add_argument("--aheads", type=int, default=8)
    p.add_argument("--joint-dim", type=int, default=512)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--grad-clip", type=float, default=5.0)
    return p


class TransducerLoss(torch.autograd.Function):
    """As warp-transducer: the gradient with respect to the logits is made in forward."""

    @staticmethod
    def forward(ctx, logits, targets, blank):
        b, t, u1, v = logits.shape
        logp = logits.log_softmax(-1)
        p_blank = logp[..., blank].clone()
        p_label = logp[:, :, :-1].gather(3, targets[:, None, :, None].expand(b, t, u1 - 1, 1)).squeeze(3)

        rows, prev = [], None
        for i in range(t):
            s = nn.functional.pad(p_label[:, i].cumsum(1), (1, 0))
            if prev is None:
                prev = s
            else:
                prev = s + torch.logcumsumexp(prev + p_blank[:, i - 1] - s, 1)
            rows.append(prev)
        alpha = torch.stack(rows, 1)

        rows, nxt = [], None
        for i in range(t - 1, -1, -1):
            s = nn.functional.pad(p_label[:, i].flip(1).cumsum(1), (1, 0)).flip(1)
            if nxt is None:
                nxt = s + p_blank[:, i, -1:]
            else:
                nxt = s + torch.logcumsumexp((nxt + p_blank[:, i] - s).flip(1), 1).flip(1)
            rows.append(nxt)
        beta = torch.stack(rows[::-1], 1)
        ll = beta[:, 0, 0]

        grads = logp.exp_().mul_((alpha + beta - ll.view(-1, 1, 1)).exp().unsqueeze(3))
        after = torch.cat([beta[:, 1:], torch.full_like(beta[:, :1], -1e4)], 1)
        after[:, -1, -1] = 0
        grads[..., blank] -= (alpha + p_blank + after - ll.view(-1, 1, 1)).exp()
        emit = (alpha[:, :, :-1] + p_label + beta[:, :, 1:] - ll.view(-1, 1, 1)).exp()
        grads[:, :, :-1].scatter_add_(3, targets[:, None, :, None].expand(b, t, u1 - 1, 1), -emit.unsqueeze(3))
        ctx.save_for_backward(grads)
        return -ll

    @staticmethod
    def backward(ctx, grad_output):
        grads, = ctx.saved_tensors
        return grads * grad_output.view(-1, 1, 1, 1), None, None


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, units):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, units), nn.ReLU(), nn.Dropout(0.1), nn.Linear(units, dim))
        self.h = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2) / math.sqrt(d // self.h)).softmax(-1)
        x = x + self.out((att @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self, args, idim=83):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(idim * 4, args.adim), nn.LayerNorm(args.adim), nn.ReLU())
        self.layers = nn.ModuleList(EncoderLayer(args.adim, args.aheads, args.eunits) for _ in range(args.elayers))

    def forward(self, feats):
        b, t, f = feats.shape
        x = self.embed(feats.reshape(b, t // 4, f * 4))
        for layer in self.layers:
            x = layer(x)
        return x


class Joiner(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.lin_enc, self.lin_dec = nn.Linear(args.adim, args.joint_dim), nn.Linear(args.adim, args.joint_dim, bias=False)
        self.lin_out = nn.Linear(args.joint_dim, args.vocab)

    def forward(self, enc, dec):
        return self.lin_out(torch.tanh(self.lin_enc(enc).unsqueeze(2) + self.lin_dec(dec).unsqueeze(1)))


class E2E(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.sub_batch = args.sub_batch
        self.encoder = Encoder(args)
        self.dec_embed = nn.Embedding(args.vocab, args.adim, padding_idx=0)
        self.decoder = nn.LSTM(args.adim, args.adim, 2, batch_first=True)
        self.joiner = Joiner(args)

    def joint_and_loss(self, enc, dec, labels):
        return TransducerLoss.apply(self.joiner(enc, dec).float(), labels, 0)

    def forward(self, feats, labels):
        with knobs.autocast():
            enc = self.encoder(feats)
            dec, _ = self.decoder(self.dec_embed(nn.functional.pad(labels, (1, 0))))
            if not self.sub_batch:
                return self.joint_and_loss(enc, dec, labels).mean()
            losses = [checkpoint(self.joint_and_loss, e, d, y, use_reentrant=False) for e, d, y in
                      zip(enc.split(self.sub_batch), dec.split(self.sub_batch), labels.split(self.sub_batch))]
            return torch.cat(losses).mean()


def main():
    args = get_parser().parse_args([])
    model = knobs.apply(E2E(args).cuda())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98), eps=1e-9)
    sched = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 25000))
    # sortagrad: the batches become longer
    for it, (frames, chars) in enumerate([(352, 13), (393, 17), (455, 20)]):
        feats = torch.randn(args.batch_size, frames * 4, 83).cuda()
        labels = torch.randint(1, args.vocab, (args.batch_size, chars)).cuda()
        loss = model(feats, labels)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        optimizer.step()
        sched.step()
        print(f"iter {it} frames {frames} labels {chars} loss {loss.item():.3f} grad_norm {float(norm):.3f}")


if __name__ == "__main__":
    main()
