# kind: a fuzzer for a classifier keeps those mutated batches that reach sections of neurons' ranges nobody reached before, the corpus is bounded and the seed with the least of its own makes room; after neuron coverage testing tools (DeepHunter / TensorFuzz-like)
import random
from dataclasses import dataclass, field

import timm
import torch
import torch.nn.functional as F

device = "cuda"
SECTIONS = 24
MAX_CORPUS = 84


@dataclass(eq=False)
class Seed:
    images: torch.Tensor
    owns: set = field(default_factory=set)
    picked: int = 0


class CoverageProbe:
    def __init__(self, model, layer_names):
        self.values = []
        modules = dict(model.named_modules())
        for name in layer_names:
            modules[name].register_forward_hook(self.grab)
        self.low = self.high = None

    def grab(self, module, args, output):
        self.values.append(output.mean(dim=(2, 3)))

    def take(self):
        row = torch.cat(self.values, dim=1)
        self.values.clear()
        return row

    def calibrate(self, rows):
        self.low, self.high = rows.min(0).values, rows.max(0).values + 1e-6

    def sections(self, row):
        pos = ((row - self.low) / (self.high - self.low) * SECTIONS).floor().clamp(0, SECTIONS - 1).long()
        ids = pos + SECTIONS * torch.arange(row.shape[1], device=row.device)
        return set(ids.unique().tolist())


def mutate(images):
    choice = random.randrange(5)
    if choice == 0:
        return (images + random.uniform(0.02, 0.3) * torch.randn_like(images)).clamp(-2, 2)
    if choice == 1:
        return images * random.uniform(0.6, 1.4)
    if choice == 2:
        return torch.roll(images, (random.randint(-8, 8), random.randint(-8, 8)), dims=(2, 3))
    if choice == 3:
        return F.avg_pool2d(images, 3, stride=1, padding=1)
    return images + random.uniform(-0.5, 0.5)


def make_room(corpus):
    weakest = min(corpus, key=lambda s: (len(s.owns), -s.picked))
    corpus.remove(weakest)
    return weakest.owns


@torch.no_grad()
def main(rounds=260):
    random.seed(1)
    torch.manual_seed(1)
    model = timm.create_model("resnet10t", pretrained=False, num_classes=10).to(device).eval()
    probe = CoverageProbe(model, ["layer1", "layer2", "layer3"])
    rows = []
    for _ in range(6):
        model(torch.randn(12, 3, 64, 64, device=device))
        rows.append(probe.take())
    probe.calibrate(torch.cat(rows))
    corpus = [Seed(torch.randn(12, 3, 64, 64, device=device)) for _ in range(3)]
    covered, failures = set(), 0
    for i in range(rounds):
        parent = min(random.sample(corpus, min(3, len(corpus))), key=lambda s: s.picked)
        parent.picked += 1
        images = mutate(parent.images)
        prediction = model(images).argmax(1)
        failures += int((prediction != prediction.mode().values).sum())
        fresh = probe.sections(probe.take()) - covered
        if fresh:
            covered |= fresh
            corpus.append(Seed(images, fresh))
            if len(corpus) > MAX_CORPUS:
                make_room(corpus)
        if i % 26 == 0:
            print(f"round {i}: corpus {len(corpus)}, sections {len(covered)}, disagreements {failures}")
    print("covered", len(covered))


if __name__ == "__main__":
    main()
