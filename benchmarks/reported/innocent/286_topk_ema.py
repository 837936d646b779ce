# kind: huggingface/pytorch-image-models style: EMA of the weights, and the best 8 checkpoints kept on the GPU for a model soup
import copy
import heapq
import itertools
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
import timm
from timm.utils import ModelEmaV3


class TopK:
    def __init__(self, k):
        self.k, self.heap, self.count = k, [], itertools.count()

    def consider(self, score, model):
        item = (score, next(self.count), {n: t.detach().clone() for n, t in model.state_dict().items()})
        if len(self.heap) < self.k:
            heapq.heappush(self.heap, item)
        elif score > self.heap[0][0]:
            heapq.heapreplace(self.heap, item)

    def soup(self):
        names = self.heap[0][2]
        return {n: sum(item[2][n].float() for item in self.heap) / len(self.heap) for n in names}


def evaluate(model):
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(8, 3, 64, 64, device="cuda")).argmax(1).cpu()
    model.train()
    return random.random()


random.seed(0)
model = timm.create_model("resnet10t", pretrained=False, num_classes=10).cuda()
ema = ModelEmaV3(model, decay=0.999, use_warmup=True)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
best = TopK(8)
for step in range(120):
    x, y = torch.randn(16, 3, 64, 64).cuda(), torch.randint(0, 10, (16,)).cuda()
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update(model, step=step)
    if step % 5 == 4:
        best.consider(evaluate(model), model)
model.load_state_dict(best.soup())
final = copy.deepcopy(ema.module)
print(len(best.heap), torch.cuda.memory_allocated() >> 20, "MiB")
