# kind: models of an image service move to the GPU when a workflow first needs them and the one unused for longest moves back to the CPU when the budget is passed, workflows use more of them as time goes by; after ComfyUI-like model management
import random
import time

import timm
import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda")
BUDGET = 190 * 2 ** 20
ZOO = {
    "tagger": "resnet10t",
    "faces": "mobilenetv3_small_100",
    "quality": "resnet18",
    "style": "convnext_atto",
    "depth": "resnet26",
    "sketch": "vit_tiny_patch16_224",
    "scene": "resnet34",
    "text": "regnetx_004",
}
WORKFLOWS = [
    ("faces",), ("faces", "tagger"), ("tagger", "style"), ("style", "sketch"), ("quality", "faces"),
    ("depth", "tagger"), ("scene", "faces"), ("text", "depth"), ("scene", "quality", "text"),
]


class Managed:
    def __init__(self, name, arch):
        self.name = name
        kwargs = {"img_size": 96} if arch.startswith("vit") else {}
        self.module = timm.create_model(arch, pretrained=False, num_classes=16, **kwargs).eval()
        tensors = list(self.module.parameters()) + list(self.module.buffers())
        self.bytes = sum(t.numel() * t.element_size() for t in tensors)
        self.last_used = 0.0


class ModelManager:
    def __init__(self, budget):
        self.budget = budget
        self.known = {name: Managed(name, arch) for name, arch in ZOO.items()}
        self.loaded = []
        self.loads = self.unloads = 0

    def used(self):
        return sum(m.bytes for m in self.loaded)

    def free(self, needed, keep):
        for model in sorted(self.loaded, key=lambda m: m.last_used):
            if self.used() + needed <= self.budget:
                return
            if model.name in keep:
                continue
            model.module.to("cpu")
            self.loaded.remove(model)
            self.unloads += 1

    def acquire(self, names):
        picked = [self.known[n] for n in names]
        missing = [m for m in picked if m not in self.loaded]
        self.free(sum(m.bytes for m in missing), keep=set(names))
        for model in missing:
            model.module.to(DEVICE)
            self.loaded.append(model)
            self.loads += 1
        for model in picked:
            model.last_used = time.monotonic()
        return [m.module for m in picked]


def preprocess(rng):
    size = rng.choice([96, 128, 160])
    image = torch.rand(2, 3, size, size).to(DEVICE)
    return F.interpolate(image, size=(96, 96), mode="bilinear", antialias=True)


@torch.inference_mode()
def serve(manager, workflow, rng):
    image = preprocess(rng)
    votes = torch.zeros(2, 16, device=DEVICE)
    for module in manager.acquire(workflow):
        votes += module(image).softmax(dim=1)
    return votes.argmax(1).tolist()


def main(requests=200):
    rng = random.Random(27)
    torch.manual_seed(27)
    manager = ModelManager(BUDGET)
    answers = 0
    for i in range(requests):
        newest = min(1 + i // 11, len(WORKFLOWS))
        workflow = WORKFLOWS[rng.randrange(newest)]
        answers += len(serve(manager, workflow, rng))
        if i % 20 == 0:
            print(f"request {i}: {manager.used() >> 20} MiB in {sorted(m.name for m in manager.loaded)}, "
                  f"loads {manager.loads}, unloads {manager.unloads}")
    print("answers", answers)


if __name__ == "__main__":
    main()
