# kind: the best state so far is a deep copy that a better one replaces; after sicara/easy-few-shot-learning PR 129
import copy
import statistics

import torch
import torch.nn as nn


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.c2, self.b2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.short = nn.Conv2d(i, o, 1, stride, bias=False)

    def forward(self, x):
        h = torch.relu(self.b1(self.c1(x)))
        return torch.relu(self.b2(self.c2(h)) + self.short(x))


class ResNet12Like(nn.Module):
    def __init__(self, n_classes=64):
        super().__init__()
        self.blocks = nn.Sequential(BasicBlock(3, 32, 2), BasicBlock(32, 64, 2), BasicBlock(64, 128, 2))
        self.fc = nn.Linear(128, n_classes)
        self.use_fc = True

    def forward(self, x):
        f = self.blocks(x).mean(dim=(2, 3))
        return self.fc(f) if self.use_fc else f


class PrototypicalNetworks:
    def __init__(self, backbone, n_way, n_shot):
        self.backbone, self.n_way, self.n_shot = backbone, n_way, n_shot

    def process_support_set(self, images):
        self.prototypes = self.backbone(images).view(self.n_way, self.n_shot, -1).mean(1)

    def __call__(self, query):
        return -torch.cdist(self.backbone(query), self.prototypes)


def training_epoch(model, optimizer, loss_fn, n_batches):
    losses = []
    model.train()
    for _ in range(n_batches):
        optimizer.zero_grad()
        loss = loss_fn(model(torch.randn(16, 3, 32, 32).cuda()), torch.randint(0, 64, (16,)).cuda())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return statistics.mean(losses)


def evaluate(few_shot, n_tasks):
    few_shot.backbone.eval()
    correct = total = 0
    with torch.no_grad():
        for _ in range(n_tasks):
            few_shot.process_support_set(torch.randn(25, 3, 32, 32).cuda())
            labels = torch.arange(5).repeat_interleave(4).cuda()
            pred = few_shot(torch.randn(20, 3, 32, 32).cuda()).argmax(1)
            correct += (pred == labels).sum().item()
            total += len(labels)
    return correct / total


def main():
    torch.manual_seed(0)
    model = ResNet12Like().cuda()
    few_shot_classifier = PrototypicalNetworks(model, n_way=5, n_shot=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[5, 8], gamma=0.1)
    loss_fn = nn.CrossEntropyLoss()
    best_state, best_validation_accuracy = model.state_dict(), 0.0
    for epoch in range(12):
        loss = training_epoch(model, optimizer, loss_fn, 8)
        model.use_fc = False
        accuracy = evaluate(few_shot_classifier, 4)
        model.use_fc = True
        if accuracy >= best_validation_accuracy:
            best_validation_accuracy = accuracy
            best_state = copy.deepcopy(model.state_dict())
            print("Ding ding ding! We found a new best model!")
        scheduler.step()
    model.load_state_dict(best_state)
    print(loss, best_validation_accuracy)


if __name__ == "__main__":
    main()
