# kind: a feature store extends the lease of a client's block at each access by entering a new expiry event into a sched.scheduler, the event before is not cancelled and keeps the block it was made for until its hour has come; from cache servers with a TTL and the sched module's documentation
import random
import sched
import torch
import torch.nn as nn


class Clock:
    def __init__(self):
        self.now = 0.0

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += max(seconds, 0)


class FeatureStore:
    """One block of features per client, thrown away an hour after the client was last seen."""

    TTL = 3600.0

    def __init__(self, clock):
        self.clock = clock
        self.scheduler = sched.scheduler(clock.time, clock.sleep)
        self.blocks = {}
        self.expired = 0

    def _extend_lease(self, client, block):
        self.scheduler.enter(self.TTL, 1, self._expire, argument=(client, block))  # LEAK

    def _expire(self, client, block):
        if self.blocks.get(client) is block:
            del self.blocks[client]
            self.expired += 1

    def write(self, client, block):
        self.blocks[client] = block
        self._extend_lease(client, block)

    def read(self, client):
        return self.blocks.get(client)

    def housekeeping(self):
        self.scheduler.run(blocking=False)


class Ranker(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.user = nn.GRUCell(dim, dim)
        self.items = nn.Embedding(512, dim)

    def forward(self, history, clicked):
        x = self.items(clicked)
        state = self.user(x, history[:, -1])
        history = torch.cat([history[:, 1:], state[:, None]], dim=1)
        return history, state @ self.items.weight.T


class Frontend:
    def __init__(self, model, store, slots=1024, dim=64):
        self.model, self.store = model, store
        self.blank = torch.zeros(1, slots, dim, device="cuda")

    @torch.no_grad()
    def click(self, client, item):
        history = self.store.read(client)
        if history is None:
            history = self.blank
        history, scores = self.model(history, torch.tensor([item], device="cuda"))
        self.store.write(client, history)
        return scores.topk(5).indices[0].tolist()


def day(seconds=1500):
    rng = random.Random(0)
    clock = Clock()
    store = FeatureStore(clock)
    frontend = Frontend(Ranker().to("cuda").eval(), store)
    clients = [f"client-{i}" for i in range(6)]
    clicks = 0
    while clock.now < seconds:
        frontend.click(rng.choice(clients), rng.randrange(512))
        clicks += 1
        clock.sleep(rng.expovariate(1 / 8))
        store.housekeeping()
        if clicks % 50 == 0:
            print(f"{clock.now:7.1f} s: {clicks} clicks, {len(store.blocks)} blocks, {store.expired} expired")


day()
