# kind: gathered parameters of sharded blocks are allocated for each forward and backward and their storages resized to nothing afterwards, the list of gathered tensors itself only gets longer; the last blocks stay gathered once there is room; from pytorch/pytorch PR 83665 and issue 117510 (FSDP unshard / reshard with storage().resize_(0))
import torch
from torch import nn

DIM, BLOCKS, SHARDS, STAY = 640, 8, 4, 3


class ShardedLinear:
    """Weights live as shards; full() gathers them, free() gives the gathered storage back."""

    ledger = []

    def __init__(self, dim, generator):
        whole = torch.randn(dim, dim, generator=generator) / dim ** 0.5
        self.shape = whole.shape
        self.shards = [s.cuda() for s in whole.chunk(SHARDS)]
        self.gathered = None
        self.stay = False

    def full(self):
        if self.gathered is None:
            self.gathered = torch.cat(self.shards)
            ShardedLinear.ledger.append(self.gathered)
        return self.gathered

    def free(self):
        if self.gathered is not None and not self.stay:
            storage = self.gathered.untyped_storage()
            if storage.size() > 0:
                storage.resize_(0)
            self.gathered = None

    def update(self, grad, lr):
        for shard, g in zip(self.shards, grad.chunk(SHARDS)):
            shard.sub_(lr * g)
        if self.gathered is not None:
            self.gathered.sub_(lr * grad)


def forward(blocks, x):
    inputs = []
    for b in blocks:
        inputs.append(x)
        x = x + torch.tanh(x @ b.full())
        b.free()
    return x, inputs


def backward(blocks, inputs, grad, lr=0.01):
    for b, x in zip(reversed(blocks), reversed(inputs)):
        w = b.full()
        pre = torch.tanh(x @ w)
        local = grad * (1 - pre * pre)
        grad_w = x.t() @ local / len(x)
        grad = grad + local @ w.t()
        b.update(grad_w, lr)
        b.free()
    return grad


@torch.no_grad()
def main(steps=160):
    g = torch.Generator().manual_seed(0)
    blocks = [ShardedLinear(DIM, g) for _ in range(BLOCKS)]
    probe = nn.Linear(DIM, 1).cuda()
    losses = []
    for step in range(steps):
        if step % 20 == 19 and step < 20 * (STAY + 1):
            blocks[-(step // 20 + 1)].stay = True
        x = torch.randn(64, DIM, generator=g).cuda()
        y, inputs = forward(blocks, x)
        error = y - x.roll(1, dims=1)
        backward(blocks, inputs, error)
        losses.append(float(error.square().mean()))
        probe(y).mean()


main()
