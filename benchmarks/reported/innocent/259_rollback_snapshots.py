# kind: innocent, full snapshots for a rollback after a loss spike, older ones are deleted beyond three by a sorted key; in the manner of LLM training "skip and rewind" utilities
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class RollbackManager:
    def __init__(self, model, optimizer, keep=3):
        self.model, self.optimizer, self.keep = model, optimizer, keep
        self.snapshots = {}

    def snapshot(self, step):
        self.snapshots[step] = (
            {k: v.clone() for k, v in self.model.state_dict().items()},
            copy.deepcopy(self.optimizer.state_dict()),
        )
        while len(self.snapshots) > self.keep:
            del self.snapshots[min(self.snapshots)]

    def rewind(self, to=-1):
        step = sorted(self.snapshots)[to]
        weights, state = self.snapshots[step]
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(copy.deepcopy(state))
        return step


class SpikeDetector:
    """Stands for the loss monitor: says at which steps the run went wrong."""

    def __init__(self, at):
        self.at = set(at)

    def spiked(self, step, loss):
        if step in self.at:
            self.at.discard(step)
            return True
        return False


class GLUBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.RMSNorm(d)
        self.w1, self.w2 = nn.Linear(d, 4 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.w2(F.glu(self.w1(self.norm(x))))


def build(d=64, depth=3, vocab=200):
    return nn.Sequential(nn.Embedding(vocab, d), *[GLUBlock(d) for _ in range(depth)], nn.Linear(d, vocab))


def main(total=150, snapshot_every=5):
    torch.manual_seed(0)
    model = build().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    manager = RollbackManager(model, optimizer)
    detector = SpikeDetector(at=(62, 101))
    step, executed = 0, 0
    while step < total:
        ids = torch.randint(0, 200, (4, 33), device="cuda")
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        executed += 1
        step += 1
        if detector.spiked(step, loss):
            back = manager.rewind()
            print(f"loss spike at {step}, rewound to {back}")
            step = back
            continue
        if step % snapshot_every == 0:
            manager.snapshot(step)
        if step % 50 == 0:
            print(f"step {step} ({executed} executed) loss {loss.item():.3f} kept {sorted(manager.snapshots)}")


if __name__ == "__main__":
    main()
