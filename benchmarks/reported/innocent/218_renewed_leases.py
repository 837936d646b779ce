# kind: each access of a client renews its lease in a sched.scheduler and cancels the event before, a day's clients log in one after another, twenty of them, and a lease that is not renewed for five minutes expires; from cache servers with a TTL (the right way round)
import random
import sched

import torch
import torch.nn as nn


class Clock:
    now = 0.0

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += max(seconds, 0)


class FeatureStore:
    TTL = 300.0

    def __init__(self, clock):
        self.scheduler = sched.scheduler(clock.time, clock.sleep)
        self.blocks, self.leases, self.expired = {}, {}, 0

    def _renew(self, client):
        event = self.leases.pop(client, None)
        if event is not None:
            self.scheduler.cancel(event)
        block = self.blocks[client]
        self.leases[client] = self.scheduler.enter(self.TTL, 1, self._expire, argument=(client, block))

    def _expire(self, client, block):
        self.leases.pop(client)
        if self.blocks.get(client) is block:
            del self.blocks[client]
            self.expired += 1

    def write(self, client, block):
        self.blocks[client] = block
        self._renew(client)

    def read(self, client):
        return self.blocks.get(client)

    def housekeeping(self):
        self.scheduler.run(blocking=False)


class Ranker(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.user, self.items = nn.GRUCell(dim, dim), nn.Embedding(512, dim)

    def forward(self, history, clicked):
        state = self.user(self.items(clicked), history[:, -1])
        return torch.cat([history[:, 1:], state[:, None]], dim=1), state @ self.items.weight.T


class Frontend:
    def __init__(self, store, slots=2048, dim=64):
        self.model, self.store = Ranker(dim).to("cuda").eval(), store
        self.blank = torch.zeros(1, slots, dim, device="cuda")

    @torch.no_grad()
    def click(self, client, item):
        history = self.store.read(client)
        history = self.blank if history is None else history
        history, scores = self.model(history, torch.tensor([item], device="cuda"))
        self.store.write(client, history)
        return scores.topk(5).indices[0].tolist()


class Day:
    def __init__(self, seats=20, login_every=5, seed=0):
        self.rng = random.Random(seed)
        self.seats, self.login_every = seats, login_every
        self.online, self.count = [], 0

    def tick(self, t):
        if len(self.online) < self.seats and t % self.login_every == 0:
            self.online.append(f"client-{self.count}")
            self.count += 1
        return self.online[t % len(self.online)]


def main(clicks=300):
    clock = Clock()
    store = FeatureStore(clock)
    frontend, day = Frontend(store), Day()
    for t in range(clicks):
        frontend.click(day.tick(t), day.rng.randrange(512))
        clock.sleep(4.0)
        store.housekeeping()
        if t % 60 == 0:
            print(f"{clock.now:7.1f} s: {len(day.online)} online, {len(store.blocks)} blocks, "
                  f"{len(store.scheduler.queue)} events, {store.expired} expired")


main()
