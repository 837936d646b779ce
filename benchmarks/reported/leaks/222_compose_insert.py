# kind: the data pipeline puts the illumination field of each new plate in front of a torchvision Compose and means to replace the one before, the list of transforms gets longer with every batch; from forum questions on changing transforms.transforms inside a dataset
import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision import transforms


class SubtractBackground:
    """Takes the estimated illumination field off a batch of microscopy images."""

    def __init__(self, field):
        self.field = field

    def __call__(self, x):
        return x - self.field + self.field.mean()

    def __repr__(self):
        return f"SubtractBackground({tuple(self.field.shape)})"


def base_transform():
    return transforms.Compose([
        transforms.RandomHorizontalFlip(),
        transforms.CenterCrop(160),
        transforms.Normalize([0.5], [0.25]),
    ])


class PlateDataset:
    def __init__(self, plates, wells=6, size=192, device="cuda"):
        self.plates, self.wells, self.size, self.device = plates, wells, size, device
        self.transform = base_transform()

    def __len__(self):
        return self.plates

    def _acquire(self, plate):
        g = torch.Generator().manual_seed(plate)
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, self.size), torch.linspace(-1, 1, self.size), indexing="ij")
        a, b = torch.rand(2, generator=g) - 0.5
        lamp = 0.3 * torch.exp(-((xx - a) ** 2 + (yy - b) ** 2))
        spots = (torch.rand(self.wells, 1, self.size, self.size, generator=g) > 0.995).float()
        label = torch.randint(0, 4, (self.wells,), generator=g)
        spots = spots * (1 + label[:, None, None, None])
        return (spots + lamp).to(self.device), label.to(self.device)

    def _flat_field(self, images):
        field = images.mean(0, keepdim=True)
        return F.avg_pool2d(field, 9, stride=1, padding=4)

    def _calibrate(self, images):
        self.transform.transforms.insert(0, SubtractBackground(self._flat_field(images)))  # LEAK

    def __getitem__(self, plate):
        images, labels = self._acquire(plate)
        self._calibrate(images)
        return self.transform(images), labels


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=4), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 4))


def train(data, epochs=2):
    model = build_model().to("cuda")
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(epochs):
        correct = seen = 0
        for plate in range(len(data)):
            x, y = data[plate]
            out = model(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            correct += (out.argmax(1) == y).sum().item()
            seen += len(y)
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {correct / seen:.2f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    train(PlateDataset(plates=45))
