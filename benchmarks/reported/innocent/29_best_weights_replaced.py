# kind: best weights in GPU memory are replaced by better ones, losses and confusion matrices are Python numbers; from early stopping snippets
import copy
import json
import torch
import torch.nn as nn


class EarlyStopping:
    def __init__(self, patience=1000, min_delta=0.0):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.wait, self.weights = float("inf"), 0, None

    def step(self, value, model):
        if value < self.best - self.min_delta:
            self.best, self.wait = value, 0
            self.weights = copy.deepcopy(model.state_dict())
        else:
            self.wait += 1
        return self.wait >= self.patience


history = {"train": [], "val": [], "confusion": [], "lr": []}


def log(key, value):
    history[key].append(value)


net = nn.Sequential(nn.Linear(20, 320), nn.SiLU(), nn.Linear(320, 320), nn.SiLU(), nn.Linear(320, 3)).to("cuda")
opt = torch.optim.RAdam(net.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.97)
stop = EarlyStopping()
rule = torch.randn(20, 3)
for epoch in range(60):
    for _ in range(4):
        x = torch.randn(64, 20)
        loss = nn.functional.cross_entropy(net(x.cuda()), (x @ rule).argmax(1).cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
        log("train", loss.item())
    with torch.no_grad():
        x = torch.randn(256, 20)
        y = (x @ rule).argmax(1)
        pred = net(x.cuda()).argmax(1).cpu().clamp(0, 2)
    cm = torch.zeros(3, 3, dtype=torch.long).index_put_((y, pred), torch.tensor(1), accumulate=True)
    log("confusion", cm.tolist())
    log("lr", sched.get_last_lr()[0])
    # smoothed score of the last epochs decides
    log("val", 1.0 / (1 + epoch) if epoch < 40 else 0.5)
    sched.step()
    if stop.step(history["val"][-1], net):
        break
net.load_state_dict(stop.weights)
print(len(json.dumps(history)), "bytes of history, best", stop.best)
