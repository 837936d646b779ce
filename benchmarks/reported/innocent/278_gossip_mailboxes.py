# kind: decentralised training, simulated peers put their weights in each other's mailboxes; why it is none: a mailbox has one slot for each sender, later mail takes its place
import random

import torch
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Peer:
    def __init__(self, rank):
        self.rank = rank
        self.net = nn.Sequential(nn.Linear(40, 90), nn.Tanh(), nn.Linear(90, 40)).cuda()
        self.opt = torch.optim.SGD(self.net.parameters(), 0.05)
        self.mail = {}

    def local(self, steps, basis):
        for _ in range(steps):
            x = torch.randn(32, 40, device="cuda") @ basis
            loss = (self.net(x) - x).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()

    def send(self, other):
        other.mail[self.rank] = parameters_to_vector(self.net.parameters()).detach()

    def mix(self):
        if self.mail:
            own = parameters_to_vector(self.net.parameters()).detach()
            mean = torch.stack([own, *self.mail.values()]).mean(0)
            vector_to_parameters(mean.clone(), self.net.parameters())


def main(rounds=120):
    random.seed(0)
    torch.manual_seed(0)
    basis = torch.randn(40, 40, device="cuda") * 0.2
    peers = [Peer(r) for r in range(6)]
    for rnd in range(rounds):
        losses = [p.local(2, basis) for p in peers]
        for p in peers:
            p.send(peers[(p.rank + random.choice((1, 2))) % 6])
        for p in peers:
            p.mix()
    print(sum(losses) / 6)


main()
