# kind: images that the classifier got wrong go into a notebook and are practised until they have been right twice in a row, the notebook swells while the model knows little and drains as it learns; after hard-example rehearsal in training scripts
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")
CLASSES, SIZE = 20, 40
NEW, REVIEW = 24, 24
LIMIT = 2500


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(5), nn.Flatten())
        self.fc = nn.Linear(32 * 25, CLASSES)

    def forward(self, x):
        return self.fc(self.body(x))


class Card:
    __slots__ = ("image", "label", "streak")

    def __init__(self, image, label):
        self.image = image
        self.label = label
        self.streak = 0


class Notebook:
    def __init__(self, limit):
        self.cards = []
        self.limit = limit
        self.learned = 0

    def note(self, images, labels, wrong):
        for i in wrong.nonzero().flatten().tolist():
            if len(self.cards) < self.limit:
                self.cards.append(Card(images[i].clone(), labels[i].clone()))

    def pick(self, k):
        random.shuffle(self.cards)
        return self.cards[:k]

    def mark(self, cards, right):
        finished = set()
        for card, ok in zip(cards, right.tolist()):
            card.streak = card.streak + 1 if ok else 0
            if card.streak == 2:
                finished.add(id(card))
        self.cards = [c for c in self.cards if id(c) not in finished]
        self.learned += len(finished)


def main():
    random.seed(31)
    torch.manual_seed(31)
    shapes = F.interpolate(torch.randn(CLASSES, 3, 8, 8, device=device), size=SIZE, mode="bilinear")
    net, notebook = Net().to(device), Notebook(LIMIT)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
    accuracy = 0.0
    for step in range(290):
        for group in optimizer.param_groups:
            group["lr"] = 1e-4 + 5e-3 * min(1.0, step / 120) ** 2
        labels = torch.randint(0, CLASSES, (NEW,), device=device)
        images = shapes[labels] + 0.9 * torch.randn(NEW, 3, SIZE, SIZE, device=device)
        cards = notebook.pick(REVIEW)
        if cards:
            batch = torch.cat([images, torch.stack([c.image for c in cards])])
            targets = torch.cat([labels, torch.stack([c.label for c in cards])])
        else:
            batch, targets = images, labels
        logits = net(batch)
        loss = F.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = logits.detach().argmax(1) == targets
        notebook.note(images, labels, ~right[:NEW])
        notebook.mark(cards, right[NEW:])
        accuracy = 0.9 * accuracy + 0.1 * right[:NEW].float().mean().item()
        if step % 29 == 0:
            print(f"step {step}: loss {loss.item():.3f}, new images right {accuracy:.2f}, "
                  f"notebook {len(notebook.cards)}, learned {notebook.learned}")


if __name__ == "__main__":
    main()
