# kind: hand-written normalisation layer whose running statistics keep the graph; from forum threads on implementing BatchNorm oneself
import torch
import torch.nn as nn


class MyBatchNorm(nn.Module):
    def __init__(self, features, momentum=0.1, eps=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.momentum, self.eps = momentum, eps

    def forward(self, x):
        if self.training:
            mean = x.mean(dim=0)
            var = x.var(dim=0, unbiased=False)
            # the running estimate uses the unbiased variance, as in the paper
            self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean.detach()
            self.running_var = (1 - self.momentum) * self.running_var + self.momentum * x.var(dim=0)  # LEAK
        else:
            mean, var = self.running_mean, self.running_var
        xhat = (x - mean) / torch.sqrt(var + self.eps)
        return self.gamma * xhat + self.beta


model = nn.Sequential(
    nn.Linear(64, 256),
    MyBatchNorm(256),
    nn.ReLU(),
    nn.Linear(256, 256),
    MyBatchNorm(256),
    nn.ReLU(),
    nn.Linear(256, 10),
).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

teacher = torch.randn(64, 10)
for epoch in range(6):
    model.train()
    for step in range(20):
        x = torch.randn(512, 64)
        y = (x @ teacher).argmax(1)
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()

    model.eval()
    with torch.no_grad():
        x = torch.randn(256, 64)
        acc = (model(x.cuda()).argmax(1).cpu() == (x @ teacher).argmax(1)).float().mean()
    print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {acc:.3f}")
