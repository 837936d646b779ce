# kind: patch features are added batch by batch and reduced by a greedy coreset whenever the bank passes its budget; after amazon-science/patchcore-inspection
import torch
from torch import nn
import torch.nn.functional as F


class Backbone(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.conv1 = nn.Conv2d(3, dim, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(dim, dim, 3, stride=2, padding=1)

    def forward(self, x):
        a = F.relu(self.conv1(x))
        b = F.relu(self.conv2(a))
        b = F.interpolate(b, size=a.shape[-2:], mode="bilinear", align_corners=False)
        return F.avg_pool2d(torch.cat([a, b], 1), 2)


class MemoryBank:
    def __init__(self, budget, keep):
        self.budget, self.keep = budget, keep
        self.features = None

    def add(self, patches):
        self.features = patches if self.features is None else torch.cat([self.features, patches])
        if self.features.shape[0] > self.budget:
            self.features = self.features[self._coreset(self.features)]

    def _coreset(self, x):
        sketch = x @ torch.randn(x.shape[1], 8, device=x.device)
        index = torch.zeros(self.keep, dtype=torch.long, device=x.device)
        distance = (sketch - sketch[0]).pow(2).sum(1)
        for i in range(1, self.keep):
            index[i] = distance.argmax()
            distance = torch.minimum(distance, (sketch - sketch[index[i]]).pow(2).sum(1))
        return index

    def score(self, patches):
        return torch.cdist(patches, self.features).min(1).values.max()


class PatchCore:
    def __init__(self):
        self.backbone = Backbone().cuda().eval()
        self.bank = MemoryBank(budget=1024, keep=256)

    @torch.inference_mode()
    def fit_batch(self, images):
        maps = self.backbone(images)
        self.bank.add(maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1]))

    @torch.inference_mode()
    def predict(self, image):
        maps = self.backbone(image)
        return self.bank.score(maps[0].flatten(1).t()).item()


torch.manual_seed(0)
detector = PatchCore()
for _ in range(100):
    detector.fit_batch(torch.rand(1, 3, 32, 32, device="cuda"))
normal = [detector.predict(torch.rand(1, 3, 32, 32, device="cuda")) for _ in range(10)]
print("bank", tuple(detector.bank.features.shape), "score", sum(normal) / 10)
