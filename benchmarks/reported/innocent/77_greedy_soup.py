# kind: weights of a fine-tuning run's epochs are collected as soup ingredients, cooked greedily after each run and thrown away before the next; from mlfoundations/model-soups
import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
w_true = torch.randn(64, 5)


def data(n, shift=0.0):
    x = torch.randn(n, 64) + shift
    return x, (x @ w_true + 2 * torch.randn(n, 5)).argmax(1)


def accuracy(model, weights, x, y):
    with torch.no_grad():
        return (functional_call(model, weights, (x,)).argmax(1) == y).float().mean().item()


def greedy_soup(model, ingredients, x, y):
    ranked = sorted(ingredients, key=lambda w: accuracy(model, w, x, y), reverse=True)
    soup, n = dict(ranked[0]), 1
    best = accuracy(model, soup, x, y)
    for w in ranked[1:]:
        trial = {k: (v * n + w[k]) / (n + 1) for k, v in soup.items()}
        score = accuracy(model, trial, x, y)
        if score >= best:
            soup, n, best = trial, n + 1, score
    return soup, n, best


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 5)).cuda()
val_x, val_y = (t.cuda() for t in data(400, 0.2))
start = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}

configs = [dict(lr=lr, wd=wd) for lr in (3e-3, 1e-3, 3e-4) for wd in (0.0, 0.05)]
report = []
for cfg in configs:
    model.load_state_dict(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["lr"], weight_decay=cfg["wd"])
    ingredients = []
    for epoch in range(9):
        for _ in range(4):
            x, y = data(48)
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ingredients.append({k: v.detach().clone() for k, v in model.state_dict().items()})
    soup, n, best = greedy_soup(model, ingredients, val_x, val_y)
    report.append((best, n, cfg))
    print(f"{cfg}: last {accuracy(model, ingredients[-1], val_x, val_y):.3f} soup of {n}: {best:.3f}")
    del soup, ingredients, optimizer

print("best", max(report, key=lambda r: r[0]))
