# kind: mutable default argument collects the predictions of all evaluations; from Stack Overflow
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda"
torch.manual_seed(0)

X = torch.randn(1024, 32)
Y = X @ torch.randn(32, 256)
train_dl = DataLoader(TensorDataset(X[:512], Y[:512]), batch_size=64, shuffle=True)
valid_dl = DataLoader(TensorDataset(X[512:], Y[512:]), batch_size=128)


def get_preds(model, dl, preds=[], targs=None):
    targs = [] if targs is None else targs
    model.eval()
    with torch.no_grad():
        for xb, yb in dl:
            out = model(xb.to(device))
            preds.append(out)  # LEAK
            targs.append(yb.to(device))
    n = len(targs)
    return torch.cat(preds[-n:]), torch.cat(targs)


def fit(epochs, model, opt, loss_func):
    for epoch in range(epochs):
        model.train()
        for xb, yb in train_dl:
            loss = loss_func(model(xb.to(device)), yb.to(device))
            loss.backward()
            opt.step()
            opt.zero_grad()
            p, t = get_preds(model, valid_dl)
            model.train()
            valid = loss_func(p, t).item()
        print(epoch, round(loss.item(), 4), round(valid, 4))


# %%
model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256)).to(device)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

# %%
fit(14, model, opt, nn.MSELoss())
