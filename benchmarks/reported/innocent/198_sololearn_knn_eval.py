# kind: features for a nearest-neighbour evaluation are collected in each epoch and dropped; after vturrisi/solo-learn issue 186
import torch
import torch.nn as nn
import torch.nn.functional as F


class WeightedKNNClassifier:
    def __init__(self, k=20, T=0.07):
        self.k, self.T = k, T
        self.reset()

    def reset(self):
        self.train_features, self.train_targets = [], []
        self.test_features, self.test_targets = [], []

    def update(self, train_features=None, train_targets=None, test_features=None, test_targets=None):
        if train_features is not None:
            self.train_features.append(train_features.detach())
            self.train_targets.append(train_targets.detach())
        if test_features is not None:
            self.test_features.append(test_features.detach())
            self.test_targets.append(test_targets.detach())

    @torch.no_grad()
    def compute(self, num_classes=10):
        train, test = torch.cat(self.train_features), torch.cat(self.test_features)
        tt, te = torch.cat(self.train_targets), torch.cat(self.test_targets)
        correct = 0
        for f, t in zip(test.split(128), te.split(128)):
            sim, idx = (F.normalize(f) @ F.normalize(train).t()).topk(self.k, dim=1)
            votes = torch.zeros(len(f), num_classes, device=f.device)
            votes.scatter_add_(1, tt[idx], (sim / self.T).exp())
            correct += (votes.argmax(1) == t).sum().item()
        self.reset()
        return correct / len(te)


class BarlowTwins(nn.Module):
    def __init__(self, feat=256, proj=128):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, feat))
        self.projector = nn.Sequential(nn.Linear(feat, proj), nn.BatchNorm1d(proj), nn.ReLU(), nn.Linear(proj, proj))
        self.knn = WeightedKNNClassifier()

    def training_step(self, x1, x2, targets):
        f1, f2 = self.backbone(x1), self.backbone(x2)
        z1, z2 = self.projector(f1), self.projector(f2)
        z1 = (z1 - z1.mean(0)) / (z1.std(0) + 1e-5)
        z2 = (z2 - z2.mean(0)) / (z2.std(0) + 1e-5)
        c = z1.t() @ z2 / len(z1)
        eye = torch.eye(c.shape[0], device=c.device)
        loss = (((c - eye) ** 2) * (eye + 0.005 * (1 - eye))).sum()
        self.knn.update(train_features=torch.cat([f1, f2]), train_targets=targets.repeat(2))
        return loss

    @torch.no_grad()
    def validation_step(self, x, targets):
        self.knn.update(test_features=self.backbone(x), test_targets=targets)


def main():
    torch.manual_seed(0)
    model = BarlowTwins().cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(5):
        model.train()
        for _ in range(20):
            x = torch.randn(128, 3, 16, 16).cuda()
            y = torch.randint(0, 10, (128,)).cuda()
            loss = model.training_step(x, x + 0.1 * torch.randn_like(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        for _ in range(6):
            model.validation_step(torch.randn(128, 3, 16, 16).cuda(), torch.randint(0, 10, (128,)).cuda())
        print(epoch, loss.item(), model.knn.compute())


if __name__ == "__main__":
    main()
