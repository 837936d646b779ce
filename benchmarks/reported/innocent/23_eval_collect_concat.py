# kind: evaluation collects all logits and embeddings on the GPU, joins them and lets them go, every other epoch; from Trainer evaluation memory issues
from collections import defaultdict
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 256), nn.ReLU(), nn.Linear(256, 256))
        self.fc = nn.Linear(256, 50)

    def forward(self, x):
        e = self.embed(x)
        return self.fc(e), e


class EvalLoop:
    def __init__(self, model, batches):
        self.model, self.batches = model, batches

    @torch.no_grad()
    def __call__(self):
        self.model.eval()
        store = defaultdict(list)
        for x, y in self.batches:
            logits, emb = self.model(x.cuda())
            store["logits"].append(logits)
            store["emb"].append(emb)
            store["y"].append(y.cuda())
        allof = {k: torch.cat(v) for k, v in store.items()}
        acc = (allof["logits"].argmax(1) == allof["y"]).float().mean()
        norm = nn.functional.normalize(allof["emb"], dim=1)
        spread = norm.mean(0).norm()
        self.model.train()
        return {"acc": acc.item(), "spread": spread.item()}


def synthetic(n, bs):
    g = torch.Generator().manual_seed(n)
    return [(torch.rand(bs, 3, 8, 8, generator=g), torch.randint(0, 50, (bs,), generator=g)) for _ in range(n)]


train, val = synthetic(6, 64), synthetic(16, 400)
model = Net().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
evaluate = EvalLoop(model, val)
table = []
for epoch in range(24):
    for x, y in train:
        out, _ = model(x.cuda())
        loss = nn.functional.cross_entropy(out, y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 2 == 1:
        table.append({"epoch": epoch, "loss": loss.item(), **evaluate()})
for row in table[::4]:
    print(row)
