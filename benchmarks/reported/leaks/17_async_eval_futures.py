# kind: finished futures kept in a list hold their results; from issues of evaluation harnesses with a thread pool
import copy
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.nn as nn


def evaluate(weights, step, x, y):
    w1, w2 = weights
    with torch.no_grad():
        logits = torch.relu(x @ w1.T) @ w2.T
        acc = (logits.argmax(1) == y).float().mean().item()
    return {"step": step, "acc": acc, "logits": logits}


class AsyncEvaluator:
    def __init__(self, x, y, workers=1):
        self.pool = ThreadPoolExecutor(max_workers=workers)
        self.x, self.y = x, y
        self.jobs = []

    def submit(self, model, step):
        weights = [copy.copy(model[0].weight.detach()).clone(), model[2].weight.detach().clone()]
        job = self.pool.submit(evaluate, weights, step, self.x, self.y)
        self.jobs.append(job)  # LEAK
        return job

    def best(self):
        done = [j.result() for j in self.jobs if j.done()]
        return max(done, key=lambda r: r["acc"], default=None)

    def close(self):
        self.pool.shutdown(wait=True)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    centers = torch.randn(64, 48, device=device)
    y_val = torch.randint(0, 64, (2048,), device=device)
    x_val = centers[y_val] + torch.randn(2048, 48, device=device)

    model = nn.Sequential(nn.Linear(48, 128, bias=False), nn.ReLU(), nn.Linear(128, 64, bias=False)).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    ev = AsyncEvaluator(x_val, y_val)
    for step in range(120):
        y = torch.randint(0, 64, (256,), device=device)
        x = centers[y] + torch.randn(256, 48, device=device)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ev.submit(model, step)
        if step % 30 == 29:
            b = ev.best()
            if b:
                print("step", step, "best so far", b["step"], round(b["acc"], 3))
    ev.close()


main()
