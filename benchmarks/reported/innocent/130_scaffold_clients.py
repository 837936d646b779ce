# kind: SCAFFOLD keeps a control variate per client, made at its first participation; there are twelve clients; after FedLab / NIID-Bench scaffold
import copy
import random

import torch
from torch import nn
import torch.nn.functional as F


def make_model():
    return nn.Sequential(nn.Linear(128, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 5))


class ScaffoldServer:
    def __init__(self, num_clients, local_steps, lr):
        self.model = make_model().cuda()
        self.num_clients, self.local_steps, self.lr = num_clients, local_steps, lr
        self.c_global = [torch.zeros_like(p) for p in self.model.parameters()]
        self.c_local = {}

    def client_update(self, client, data):
        if client not in self.c_local:
            self.c_local[client] = [torch.zeros_like(c) for c in self.c_global]
        c_i = self.c_local[client]
        local = copy.deepcopy(self.model)
        params = list(local.parameters())
        for _ in range(self.local_steps):
            idx = torch.randint(0, data[0].shape[0], (32,), device="cuda")
            loss = F.cross_entropy(local(data[0][idx]), data[1][idx])
            grads = torch.autograd.grad(loss, params)
            with torch.no_grad():
                for p, g, ci, c in zip(params, grads, c_i, self.c_global):
                    p -= self.lr * (g - ci + c)
        with torch.no_grad():
            delta_c = []
            for p, w, ci, c in zip(params, self.model.parameters(), c_i, self.c_global):
                new = ci - c + (w - p) / (self.local_steps * self.lr)
                delta_c.append(new - ci)
                ci.copy_(new)
        return local, delta_c, loss.item()

    @torch.no_grad()
    def aggregate(self, results):
        for i, w in enumerate(self.model.parameters()):
            w.copy_(torch.stack([list(local.parameters())[i] for local, _, _ in results]).mean(0))
        for i, c in enumerate(self.c_global):
            c += torch.stack([dc[i] for _, dc, _ in results]).sum(0) / self.num_clients


def client_data(client):
    g = torch.Generator().manual_seed(client)
    x = torch.randn(128, 128, generator=g) + 0.05 * client
    return x.cuda(), (x[:, :5] + 0.1 * client % 3).argmax(1).cuda()


random.seed(1)
torch.manual_seed(0)
clients = {c: client_data(c) for c in range(12)}
server = ScaffoldServer(12, local_steps=3, lr=0.05)
order = list(range(12))
for round_ in range(30):
    picked = order[3 * round_:3 * round_ + 3] if round_ < 4 else random.sample(order, 3)
    results = [server.client_update(c, clients[c]) for c in picked]
    server.aggregate(results)
    last = sum(r[2] for r in results) / len(results)
    del results
print("loss", last, "clients", len(server.c_local))
