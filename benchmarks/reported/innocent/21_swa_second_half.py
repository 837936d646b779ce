# kind: stochastic weight averaging starts after a third of training, the averaged copy comes once; from SWA questions on memory rising in mid training
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, SWALR

dev = torch.device("cuda")
torch.manual_seed(1)
epochs, swa_start, steps = 18, 6, 6
W = torch.randn(40, 6)


def loader():
    for _ in range(steps):
        x = torch.randn(64, 40)
        yield x.to(dev), (x @ W).argmax(1).to(dev)


model = nn.Sequential(nn.Linear(40, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 6)).to(dev)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
cos = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=swa_start)
swa_model, swa_sched = None, None

for epoch in range(epochs):
    for x, y in loader():
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch >= swa_start:
        if swa_model is None:
            swa_model = AveragedModel(model)
            swa_sched = SWALR(opt, swa_lr=0.02)
        swa_model.update_parameters(model)
        swa_sched.step()
    else:
        cos.step()
    print(epoch, f"{loss.item():.3f}", "averaging" if swa_model is not None else "")

# statistics of the batch norm for the averaged weights
swa_model.train()
with torch.no_grad():
    for _ in range(3):
        for x, _y in loader():
            swa_model(x)
swa_model.eval()
