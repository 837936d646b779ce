# kind: depth is doubled by copying the layers until 12 are reached, each time with a new optimizer; from progressive stacking of BERT / LayerDrop discussions
import copy

import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, vocab=300, d=96, depth=1):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Parameter(torch.zeros(1, 32, d))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(d, 4, 3 * d, batch_first=True, dropout=0.0) for _ in range(depth))
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        h = self.tok(ids) + self.pos[:, :ids.shape[1]]
        for layer in self.layers:
            h = layer(h)
        return self.out(h)

    def stack(self, limit):
        n = min(len(self.layers), limit - len(self.layers))
        for layer in list(self.layers)[-n:]:
            self.layers.append(copy.deepcopy(layer))


def mlm_batch(n=4, length=20):
    ids = torch.randint(4, 300, (n, length))
    ids[:, 1::2] = ids[:, ::2]
    mask = torch.rand(n, length) < 0.15
    mask[0, 0] = True
    return ids.masked_fill(mask, 3).cuda(), ids.cuda(), mask.cuda()


def main():
    torch.manual_seed(0)
    net = Encoder().cuda()
    make = lambda: torch.optim.AdamW(net.parameters(), lr=1e-3)
    opt, grow_at = make(), {15, 30, 45, 60}
    for step in range(150):
        if step in grow_at:
            net.stack(12)
            opt = make()
        x, y, mask = mlm_batch()
        loss = nn.functional.cross_entropy(net(x)[mask], y[mask])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 34 == 0:
            print("step", step, "layers", len(net.layers), "loss %.3f" % loss.item())


if __name__ == "__main__":
    main()
