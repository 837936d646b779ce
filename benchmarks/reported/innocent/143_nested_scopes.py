# kind: scopes with tensors are pushed at each level of a recursive evaluation and popped in finally also when the evaluation fails, programs get deeper up to a limit; after nix-community/pypi2nix PR 318
from contextlib import contextmanager

import torch
from torch import nn

torch.manual_seed(5)
dev = torch.device("cuda")
SCOPES = []


class DepthError(RuntimeError):
    pass


@contextmanager
def scope(**tensors):
    SCOPES.append(tensors)
    try:
        yield
    finally:
        SCOPES.pop()


def lookup(name):
    for frame in reversed(SCOPES):
        if name in frame:
            return frame[name]
    raise KeyError(name)


class Filter(nn.Module):
    """Evaluates a nested visual program on a feature map."""

    def __init__(self, concepts=12):
        super().__init__()
        self.concept = nn.Embedding(concepts, 32)
        self.gate = nn.Linear(32, 32)

    def evaluate(self, program, depth=0):
        if depth > 14:
            raise DepthError(f"program nests deeper than {depth - 1}")
        features = lookup("features")
        word = self.concept.weight[program[0]]
        attention = torch.sigmoid(features @ self.gate(word))
        if len(program) == 1:
            return attention.mean()
        with scope(features=features * attention[:, None], depth=depth):
            inner = self.evaluate(program[1:], depth + 1)
        return 0.5 * inner + 0.5 * attention.mean()


def main():
    model = Filter().to(dev)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(6)
    failed, losses = 0, []
    for step in range(220):
        longest = min(2 + step // 6, 18)
        length = int(torch.randint(max(longest - 4, 1), longest + 1, (1,), generator=gen))
        program = torch.randint(0, 12, (length,), generator=gen).tolist()
        image = torch.randn(8192, 32, generator=gen).to(dev)
        try:
            with scope(features=image):
                score = model.evaluate(program)
            loss = (score - 0.5).square()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        except DepthError:
            failed += 1
        if step % 44 == 43:
            print(f"step {step + 1}: loss {sum(losses[-20:]) / 20:.5f} failed {failed} open scopes {len(SCOPES)}")


if __name__ == "__main__":
    main()
