# kind: learning rate finder keeps the initial state on the GPU and losses in a list during the range test, restores and drops them, then training begins with a new optimizer; from davidtvs/pytorch-lr-finder and fastai
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LRFinder:
    def __init__(self, model, optimizer, criterion):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.state = {"model": copy.deepcopy(model.state_dict()), "optimizer": copy.deepcopy(optimizer.state_dict())}
        self.history = {"lr": [], "loss": []}

    def range_test(self, loader, end_lr=1.0, num_iter=40):
        start = self.optimizer.param_groups[0]["lr"]
        it = iter(loader)
        for i in range(num_iter):
            try:
                x, y = next(it)
            except StopIteration:
                it = iter(loader)
                x, y = next(it)
            lr = start * (end_lr / start) ** (i / (num_iter - 1))
            self.optimizer.param_groups[0]["lr"] = lr
            loss = self.criterion(self.model(x.cuda()), y.cuda())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.history["lr"].append(lr)
            self.history["loss"].append(loss.detach())
            if loss.item() > 8 * self.history["loss"][0].item():
                break

    def suggestion(self):
        losses = torch.stack(self.history["loss"])
        slope = losses[2:] - losses[:-2]
        return self.history["lr"][slope.argmin().item() + 1]

    def reset(self):
        self.model.load_state_dict(self.state["model"])
        self.optimizer.load_state_dict(self.state["optimizer"])
        self.state = None
        self.history = {"lr": [], "loss": []}


torch.manual_seed(0)
w = torch.randn(60, 1)
x = torch.randn(1600, 60)
loader = DataLoader(TensorDataset(x, torch.sin(x @ w * 0.3)), batch_size=40, shuffle=True)
model = nn.Sequential(nn.Linear(60, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
finder = LRFinder(model, optimizer, nn.MSELoss())
finder.range_test(loader)
lr = finder.suggestion()
finder.reset()
print("suggested", f"{lr:.2e}")

optimizer = torch.optim.Adam(model.parameters(), lr=min(lr, 2e-3))
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss %.4f" % loss.item())
