# kind: active learning moves the most uncertain pool images to the GPU round by round until the label budget is spent, training goes on with the fixed set; from baal / modAL notebooks
import torch
import torch.nn as nn
import torch.nn.functional as F

BUDGET, QUERY, START = 256, 24, 40


def make_pool(n=500):
    y = torch.randint(4, (n,))
    x = 0.8 * torch.randn(n, 1, 40, 40)
    for k, c in enumerate(y.tolist()):
        x[k, 0, 10 * c:10 * c + 10, 5:35] += 0.7
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(1, 8, 5, 3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(8 * 12 * 12, 4))

    def forward(self, x):
        return self.f(x)


class LabelledSet:
    def __init__(self):
        self.images, self.labels = [], []

    def label(self, x, y):
        self.images += [i.cuda() for i in x]
        self.labels += y.tolist()

    def __len__(self):
        return len(self.labels)

    def batch(self, k=24):
        idx = torch.randint(len(self), (k,)).tolist()
        return torch.stack([self.images[i] for i in idx]), torch.tensor([self.labels[i] for i in idx], device="cuda")


@torch.no_grad()
def bald(net, x, draws=4):
    net.train()
    p = torch.stack([net(x.cuda()).softmax(1) for _ in range(draws)])
    mean = p.mean(0)
    entropy = -(mean * mean.clamp(min=1e-8).log()).sum(1)
    return (entropy + (p * p.clamp(min=1e-8).log()).sum(2).mean(0)).cpu()


torch.manual_seed(0)
pool_x, pool_y = make_pool()
test_x, test_y = make_pool(100)
data = LabelledSet()
data.label(pool_x[:START], pool_y[:START])
pool_x, pool_y = pool_x[START:], pool_y[START:]
net = Net().cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for it in range(1, 191):
    x, y = data.batch()
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 10 == 0 and len(data) < BUDGET:
        order = bald(net, pool_x[:200]).argsort(descending=True)[:min(QUERY, BUDGET - len(data))]
        keep = torch.ones(len(pool_x), dtype=torch.bool)
        keep[order] = False
        data.label(pool_x[order], pool_y[order])
        pool_x, pool_y = pool_x[keep], pool_y[keep]
    if it % 38 == 0:
        net.eval()
        with torch.no_grad():
            acc = (net(test_x.cuda()).argmax(1).cpu() == test_y).float().mean().item()
        net.train()
        print(f"iteration {it} loss {loss.item():.3f} accuracy {acc:.2f} labelled {len(data)} pool {len(pool_x)}")
