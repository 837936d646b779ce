# kind: evaluation in the background, at most a few jobs wait and finished ones are taken out; from evaluation harness code
from collections import deque
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.nn as nn
import torch.nn.functional as F


class Policy(nn.Module):
    def __init__(self, d=32, h=256, a=6):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(d, h), nn.Linear(h, h), nn.Linear(h, a)

    def forward(self, x):
        return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(x)))))


def rollout(weights, x, y):
    with torch.no_grad():
        h = torch.tanh(F.linear(x, weights["l1.weight"], weights["l1.bias"]))
        h = torch.tanh(F.linear(h, weights["l2.weight"], weights["l2.bias"]))
        logits = F.linear(h, weights["l3.weight"], weights["l3.bias"])
        return {"acc": (logits.argmax(-1) == y).float().mean().item(), "weights": weights}


class BackgroundEval:
    MAX_WAITING = 20

    def __init__(self, x, y):
        self.pool = ThreadPoolExecutor(1)
        self.x, self.y = x, y
        self.waiting = deque()
        self.best_acc, self.best_weights = -1.0, None
        self.curve = []

    def submit(self, step, model):
        weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.waiting.append((step, self.pool.submit(rollout, weights, self.x, self.y)))
        if len(self.waiting) > self.MAX_WAITING:
            self.collect_one()

    def collect_one(self):
        step, fut = self.waiting.popleft()
        res = fut.result()
        self.curve.append((step, res["acc"]))
        if res["acc"] > self.best_acc:
            self.best_acc, self.best_weights = res["acc"], res["weights"]

    def finish(self):
        while self.waiting:
            self.collect_one()
        self.pool.shutdown()


def main():
    torch.manual_seed(8)
    w = torch.randn(32, 6, device="cuda")
    xv = torch.randn(400, 32, device="cuda")
    ev = BackgroundEval(xv, (xv @ w).argmax(-1))
    model = Policy().cuda()
    opt = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    for step in range(130):
        x = torch.randn(128, 32, device="cuda")
        loss = F.cross_entropy(model(x), (x @ w).argmax(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        ev.submit(step, model)
        if step % 30 == 29:
            print("step", step, "evaluated", len(ev.curve), "best", round(ev.best_acc, 3))
    ev.finish()
    print("final best", round(ev.best_acc, 3))


if __name__ == "__main__":
    main()
