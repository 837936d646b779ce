# kind: innocent, hard-example miner holds the crops in a heap that pushes and pops once it has 64; own, in the manner of OHEM-like curation scripts
import heapq
import itertools
from dataclasses import dataclass, field

import torch
import torch.nn as nn
from torchvision.models import squeezenet1_1


@dataclass(order=True)
class HardExample:
    difficulty: float
    order: int
    crop: torch.Tensor = field(compare=False, repr=False)
    label: int = field(compare=False, default=-1)


class HardExampleMiner:
    def __init__(self, limit):
        self.limit = limit
        self.heap = []
        self._order = itertools.count()

    def offer(self, crops, labels, losses):
        for crop, label, loss in zip(crops, labels.tolist(), losses.tolist()):
            item = HardExample(loss, next(self._order), crop.clone(), label)
            if len(self.heap) < self.limit:
                heapq.heappush(self.heap, item)
            else:
                heapq.heappushpop(self.heap, item)

    def minibatch(self, n):
        hardest = heapq.nlargest(n, self.heap)
        crops = torch.stack([e.crop for e in hardest])
        labels = torch.tensor([e.label for e in hardest], device=crops.device)
        return crops, labels

    def __len__(self):
        return len(self.heap)


def random_crops(n, size, device):
    images = torch.rand(n, 3, size, size, device=device)
    return images, torch.randint(0, 5, (n,), device=device)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = squeezenet1_1(weights=None, num_classes=5).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    per_sample = nn.CrossEntropyLoss(reduction="none")
    miner = HardExampleMiner(limit=64)

    for step in range(80):
        crops, labels = random_crops(2, 64, device)
        if len(miner) >= 8 and step % 4 == 3:
            hard, hard_labels = miner.minibatch(2)
            crops, labels = torch.cat([crops, hard]), torch.cat([labels, hard_labels])
        losses = per_sample(model(crops), labels)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        miner.offer(crops, labels, losses.detach().cpu())
        if step % 20 == 0:
            print(f"step {step} loss {losses.mean().item():.3f} mined {len(miner)}")


if __name__ == "__main__":
    main()
