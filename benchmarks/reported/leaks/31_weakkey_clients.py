# kind: values of a WeakKeyDictionary refer back to their keys, so that clients of past rounds never go; from federated learning simulations
import copy
import weakref
import torch
import torch.nn as nn


class Client:
    def __init__(self, cid, global_model):
        self.cid = cid
        self.model = copy.deepcopy(global_model)
        self.gen = torch.Generator().manual_seed(cid)

    def data(self, n=64):
        x = torch.randn(n, 48, generator=self.gen)
        return x.cuda(), (x[:, 0] > 0.1 * (self.cid % 5)).long().cuda()

    def local_steps(self, k, lr):
        opt = torch.optim.SGD(self.model.parameters(), lr=lr)
        for _ in range(k):
            x, y = self.data()
            loss = nn.functional.cross_entropy(self.model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.item()


class ServerView:
    """What the server knows about a client: its update and how much it counts."""

    def __init__(self, client, weight):
        self.client = client
        self.weight = weight

    def delta(self, global_model):
        mine = dict(self.client.model.named_parameters())
        return {n: (mine[n] - p).detach() * self.weight for n, p in global_model.named_parameters()}


class Server:
    def __init__(self, model):
        self.model = model
        # weak, a client that has gone away disappears from here too
        self.views = weakref.WeakKeyDictionary()

    def register(self, client, weight):
        self.views[client] = ServerView(client, weight)  # LEAK

    @torch.no_grad()
    def aggregate(self, clients):
        deltas = [self.views[c].delta(self.model) for c in clients]
        for n, p in self.model.named_parameters():
            p.add_(sum(d[n] for d in deltas))


def simulate(rounds=60, per_round=2):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(48, 224), nn.ReLU(), nn.Linear(224, 224), nn.ReLU(), nn.Linear(224, 2)).cuda()
    server = Server(net)
    cid = 0
    for r in range(rounds):
        clients = []
        for _ in range(per_round):
            c = Client(cid, server.model)
            cid += 1
            server.register(c, 1.0 / per_round)
            clients.append(c)
        losses = [c.local_steps(3, lr=0.05) for c in clients]
        server.aggregate(clients)
        if r % 15 == 0:
            print(f"round {r}: mean client loss {sum(losses) / len(losses):.4f}")
    return server


simulate()
