# kind: EMA teacher refreshed, best state kept, predictions of the last N steps popped from the front; from semi-supervised repositories
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.bad = patience, 0
        self.best, self.state = float("inf"), None

    def step(self, value, model):
        if value < self.best:
            self.best, self.bad = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


class MeanTeacher:
    def __init__(self, student, decay=0.98, window=40):
        self.student = student
        self.teacher = copy.deepcopy(student).requires_grad_(False)
        self.decay, self.window = decay, window
        self.recent = []          # teacher predictions for distribution alignment

    @torch.no_grad()
    def update(self):
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            t.lerp_(s, 1 - self.decay)

    @torch.no_grad()
    def targets(self, x):
        p = self.teacher(x).softmax(-1)
        self.recent.append(p)
        if len(self.recent) > self.window:
            self.recent.pop(0)
        prior = torch.stack([r.mean(0) for r in self.recent]).mean(0)
        p = p / prior.clamp_min(1e-4)
        return p / p.sum(-1, keepdim=True)


def data(n, w, device):
    x = torch.randn(n, w.size(0), device=device)
    return x, (x @ w).argmax(-1)


def main():
    torch.manual_seed(9)
    device = torch.device("cuda")
    w = torch.randn(40, 128, device=device)
    student = nn.Sequential(nn.Linear(40, 200), nn.ReLU(), nn.Linear(200, 128)).to(device)
    mt, stop = MeanTeacher(student), EarlyStopping(patience=15)
    opt = torch.optim.AdamW(student.parameters(), lr=3e-3)
    xv, yv = data(512, w, device)
    for step in range(140):
        xl, yl = data(64, w, device)
        xu, _ = data(768, w, device)
        sup = F.cross_entropy(student(xl), yl)
        cons = F.mse_loss(student(xu + 0.1 * torch.randn_like(xu)).softmax(-1), mt.targets(xu))
        loss = sup + 10 * cons
        opt.zero_grad()
        loss.backward()
        opt.step()
        mt.update()
        if step % 10 == 9:
            with torch.no_grad():
                val = F.cross_entropy(mt.teacher(xv), yv).item()
            print(f"{step:4d} loss {loss.item():.3f} val {val:.3f}")
            if stop.step(val, mt.teacher):
                break
    mt.teacher.load_state_dict(stop.state)
    print("best", round(stop.best, 3))


if __name__ == "__main__":
    main()
