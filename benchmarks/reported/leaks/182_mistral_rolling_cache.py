# kind: the rolling KV cache is written in place under autograd, so its graph grows by one scatter (with its index tensor) per layer and forward and is never backpropagated; after mistralai/mistral-inference issue 20
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 64
    n_layers: int = 2
    head_dim: int = 16
    n_heads: int = 4
    n_kv_heads: int = 2
    hidden_dim: int = 128
    sliding_window: int = 64
    max_batch_size: int = 16


def repeat_kv(keys, values, repeats):
    keys = torch.repeat_interleave(keys, repeats=repeats, dim=2)
    values = torch.repeat_interleave(values, repeats=repeats, dim=2)
    return keys, values


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.n_heads, self.n_kv_heads = args.n_heads, args.n_kv_heads
        self.repeats = self.n_heads // self.n_kv_heads
        self.sliding_window = args.sliding_window
        self.scale = args.head_dim ** -0.5
        self.wq = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * args.head_dim, args.dim, bias=False)
        shape = (args.max_batch_size, args.sliding_window, args.n_kv_heads, args.head_dim)
        self.cache_k = torch.zeros(shape).cuda()
        self.cache_v = torch.zeros(shape).cuda()

    def forward(self, x, positions, mask):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(bsz, seqlen, self.n_heads, self.args.head_dim)
        xk = xk.view(bsz, seqlen, self.n_kv_heads, self.args.head_dim)
        xv = xv.view(bsz, seqlen, self.n_kv_heads, self.args.head_dim)

        # The cache is a rotating buffer
        scatter_pos = (positions[-self.sliding_window:] % self.sliding_window)[None, :, None, None]
        scatter_pos = scatter_pos.repeat(bsz, 1, self.n_kv_heads, self.args.head_dim)
        self.cache_k[:bsz].scatter_(dim=1, index=scatter_pos, src=xk[:, -self.sliding_window:])  # LEAK
        self.cache_v[:bsz].scatter_(dim=1, index=scatter_pos, src=xv[:, -self.sliding_window:])  # ALSO

        if positions.shape[0] > 1:
            key, value = repeat_kv(xk, xv, self.repeats)
        else:
            cur_pos = positions[-1].item() + 1
            key, value = repeat_kv(self.cache_k[:bsz, :cur_pos], self.cache_v[:bsz, :cur_pos], self.repeats)

        query, key, value = xq.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        scores = torch.matmul(query, key.transpose(2, 3)) * self.scale
        if mask is not None:
            scores = scores + mask[None, None]
        output = torch.matmul(F.softmax(scores, dim=-1), value)
        return self.wo(output.transpose(1, 2).contiguous().view(bsz, seqlen, -1))


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention = Attention(args)
        self.ff = nn.Sequential(nn.Linear(args.dim, args.hidden_dim), nn.SiLU(),
                                nn.Linear(args.hidden_dim, args.dim))
        self.n1, self.n2 = nn.LayerNorm(args.dim), nn.LayerNorm(args.dim)

    def forward(self, x, positions, mask):
        x = x + self.attention(self.n1(x), positions, mask)
        return x + self.ff(self.n2(x))


class TabularTransformer(nn.Module):
    def __init__(self, args, n_features):
        super().__init__()
        self.inp = nn.Linear(n_features, args.dim)
        self.layers = nn.ModuleList([Block(args) for _ in range(args.n_layers)])
        self.out = nn.Linear(args.dim, 2)

    def forward(self, x, positions):
        h = self.inp(x)
        n = x.shape[1]
        mask = torch.triu(torch.full((n, n), float("-inf"), device=x.device), diagonal=1)
        for layer in self.layers:
            h = layer(h, positions, mask)
        return self.out(h.mean(dim=1))


def main():
    torch.manual_seed(0)
    args = ModelArgs()
    model = TabularTransformer(args, n_features=12).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    num_of_most_instances = 50
    positions = torch.arange(1, num_of_most_instances + 1).cuda()
    for step in range(100):
        x = torch.randn(16, num_of_most_instances, 12).cuda()
        y = torch.randint(0, 2, (16,)).cuda()
        loss = F.cross_entropy(model(x, positions), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
