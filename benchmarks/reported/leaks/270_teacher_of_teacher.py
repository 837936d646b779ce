# kind: self-distillation copies the whole model, which has its former teacher as a submodule, so each new teacher holds all teachers before it; own, in the manner of born-again/LwF continual-learning code
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class ContinualClassifier(nn.Module):
    def __init__(self, d_in=64, hidden=160, classes=20):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(d_in, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
        )
        self.head = nn.Linear(hidden, classes)
        self.teacher = None

    def forward(self, x):
        return self.head(self.backbone(x))

    def refresh_teacher(self):
        """Freezes the present model as the teacher of the next task."""
        teacher = copy.deepcopy(self).eval()  # ALSO
        for p in teacher.parameters():
            p.requires_grad_(False)
        self.teacher = teacher  # LEAK

    def distillation_loss(self, x, logits, T=2.0):
        if self.teacher is None:
            return logits.new_zeros(())
        with torch.no_grad():
            soft = self.teacher(x).div(T).softmax(-1)
        return -(soft * logits.div(T).log_softmax(-1)).sum(-1).mean() * T * T


class TaskStream:
    def __init__(self, n_tasks, d_in=64, classes=20, device="cuda"):
        self.n_tasks, self.d_in, self.classes, self.device = n_tasks, d_in, classes, device

    def __iter__(self):
        for t in range(self.n_tasks):
            shift = torch.randn(self.d_in, device=self.device)
            yield t, [self.batch(shift) for _ in range(4)]

    def batch(self, shift, n=32):
        x = torch.randn(n, self.d_in, device=self.device) + shift
        y = torch.randint(0, self.classes, (n,), device=self.device)
        return x, y


def learn_task(model, batches, lam=1.0):
    trainable = list(model.backbone.parameters()) + list(model.head.parameters())
    optimizer = torch.optim.SGD(trainable, lr=0.05)
    model.train()
    total = 0.0
    for x, y in batches:
        logits = model(x)
        loss = F.cross_entropy(logits, y) + lam * model.distillation_loss(x, logits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


def main():
    torch.manual_seed(11)
    model = ContinualClassifier().to("cuda")
    for t, batches in TaskStream(n_tasks=64):
        loss = learn_task(model, batches)
        model.refresh_teacher()  # ALSO
        if t % 16 == 0:
            print(f"task {t:2d} loss {loss:.3f} memory {torch.cuda.memory_allocated() / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
