# kind: a helper with a recursive inner function flattens nested outputs, function and cell form a cycle that holds the leaves, automatic collection is off and gc.collect(1) runs every 30 steps; after pytorch/pytorch PR 191441 and torchtitan's garbage collection handler
import gc

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"
GC_EVERY = 30


class GarbageCollection:
    def __init__(self, every):
        self.every = every
        gc.disable()
        gc.collect()

    def run(self, step):
        if step > 1 and step % self.every == 0:
            gc.collect(1)


def flatten_outputs(outputs):
    leaves = []

    def visit(prefix, node):
        if isinstance(node, dict):
            for key, value in node.items():
                visit(prefix + (key,), value)
        elif isinstance(node, (list, tuple)):
            for i, value in enumerate(node):
                visit(prefix + (str(i),), value)
        else:
            leaves.append((".".join(prefix), node))

    visit((), outputs)
    return dict(leaves)


class Head(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.out = nn.Conv2d(width, out, 1)

    def forward(self, x):
        h = F.relu(self.conv(x))
        return {"logits": self.out(h), "embedding": h}


class MultiTask(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 5, stride=2, padding=2)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.heads = nn.ModuleDict({"depth": Head(width, 1), "normals": Head(width, 3), "labels": Head(width, 8)})

    def forward(self, images):
        fine = F.relu(self.stem(images))
        coarse = F.relu(self.down(fine))
        return {name: {"scales": [head(fine), head(coarse)]} for name, head in self.heads.items()}


def targets_for(images, size):
    small = F.interpolate(images, size=size, mode="area")
    return {"depth": small.mean(1, keepdim=True), "normals": F.normalize(small, dim=1),
            "labels": (small.sum(1) * 2).long().remainder(8)}


def multi_task_loss(flat, images):
    total = 0.0
    for name, value in flat.items():
        if not name.endswith("logits"):
            continue
        task = name.split(".")[0]
        target = targets_for(images, value.shape[-2:])[task]
        if task == "labels":
            total = total + F.cross_entropy(value, target)
        else:
            total = total + F.l1_loss(value, target)
    return total


def main():
    torch.manual_seed(41)
    model = MultiTask().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    collector = GarbageCollection(GC_EVERY)
    for step in range(1, 226):
        collector.run(step)
        images = torch.randn(4, 3, 64, 64, device=device)
        flat = flatten_outputs(model(images))
        loss = multi_task_loss(flat, images)
        spread = sum(v.detach().std().item() for k, v in flat.items() if k.endswith("embedding"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step}: loss {loss.item():.3f}, spread {spread:.3f}")
        del flat, loss


if __name__ == "__main__":
    main()
