# kind: parse trees whose nodes know their parents are reference cycles, a gc.collect() every 10 sentences frees them; from recursive network / DyNet-style code and gc questions
import gc
import random
import torch
import torch.nn as nn

gc.disable()  # pauses in the middle of a sentence cost more than the memory


class Node:
    __slots__ = ("left", "right", "parent", "word", "h")

    def __init__(self, word=None, left=None, right=None):
        self.word, self.left, self.right, self.parent, self.h = word, left, right, None, None
        for child in (left, right):
            if child is not None:
                child.parent = self

    def walk(self):
        for c in (self.left, self.right):
            if c is not None:
                yield from c.walk()
        yield self


def random_tree(rng, n):
    nodes = [Node(word=rng.randrange(300)) for _ in range(n)]
    while len(nodes) > 1:
        i = rng.randrange(len(nodes) - 1)
        nodes[i:i + 2] = [Node(left=nodes[i], right=nodes[i + 1])]
    return nodes[0]


class TreeRNN(nn.Module):
    def __init__(self, dim=128, batch=96):
        super().__init__()
        self.emb = nn.Embedding(300, dim)
        self.compose = nn.Linear(2 * dim, dim)
        self.out = nn.Linear(dim, 3)
        self.batch = batch

    def forward(self, root):
        for n in root.walk():
            if n.word is not None:
                n.h = self.emb.weight[n.word].expand(self.batch, -1)
            else:
                n.h = torch.tanh(self.compose(torch.cat([n.left.h, n.right.h], 1)))
        return self.out(root.h)


rng = random.Random(8)
net = TreeRNN().cuda()
opt = torch.optim.Adagrad(net.parameters(), lr=0.02)
for i in range(150):
    tree = random_tree(rng, 12)
    loss = nn.functional.cross_entropy(net(tree), torch.randint(0, 3, (96,)).cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 10 == 9:
        found = gc.collect()
        if i % 50 == 49:
            print("sentence", i + 1, "loss", f"{loss.item():.3f}", "collected", found)
