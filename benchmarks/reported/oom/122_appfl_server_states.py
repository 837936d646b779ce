# CARD: 16GiB
# KNOBS: SHARED_MODEL FEDAVG CLIENTS=203 BATCH=64 OPT
# EXPERT: one model is small (6.6M weights, 25 MiB), but there are 203 clients: each has a model on the GPU, the server has a dual state for each, the round's results are 203 state dicts and the server deep-copies every one of them into primal_states, which is where it dies (5 GiB for each of the four); one model for all clients of a simulation, plain averaging as results come in (FEDAVG), state dicts on the CPU, fewer clients; batch size and local optimizer do not matter
# after APPFL/APPFL issue 112 (https://github.com/APPFL/APPFL/issues/112), FEMNIST with 203 clients, copy.deepcopy(states["primal"]) in the server's update
import copy
import os
from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

CLIENTS = int(os.environ.get("CLIENTS", 203))
BATCH = int(os.environ.get("BATCH", 64))
SHARED_MODEL = os.environ.get("SHARED_MODEL") == "1"
FEDAVG = os.environ.get("FEDAVG") == "1"


class CNN(nn.Module):
    def __init__(self, classes=62):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * 7 * 7, 2048)
        self.fc2 = nn.Linear(2048, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class BaseClient:
    def __init__(self, ident, model, local_steps=1):
        self.id = ident
        self.model = model if SHARED_MODEL else copy.deepcopy(model)
        self.local_steps = local_steps

    def batch(self):
        return torch.rand(BATCH, 1, 28, 28, device="cuda"), torch.randint(0, 62, (BATCH,), device="cuda")

    def update(self, global_state):
        self.model.load_state_dict(global_state)
        opt = torch.optim.SGD(self.model.parameters(), lr=0.01)
        for _ in range(self.local_steps):
            x, y = self.batch()
            loss = F.cross_entropy(self.model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        opt.zero_grad(set_to_none=True)
        primal = OrderedDict((k, v.detach().clone()) for k, v in self.model.state_dict().items())
        return {"primal": primal, "id": self.id}


class IIADMMServer:
    """Keeps a primal and a dual state for each client."""

    def __init__(self, model, num_clients, rho=100.0):
        self.model, self.rho, self.num_clients = model, rho, num_clients
        self.primal_states = OrderedDict()
        self.dual_states = OrderedDict(
            (i, OrderedDict((k, torch.zeros_like(v)) for k, v in model.state_dict().items()))
            for i in range(num_clients))

    def primal_recover_from_local_states(self, local_states):
        for states in local_states:
            self.primal_states[states["id"]] = copy.deepcopy(states["primal"])

    def update(self, local_states):
        self.primal_recover_from_local_states(local_states)
        new = OrderedDict()
        for name, w in self.model.state_dict().items():
            total = torch.zeros_like(w)
            for i in range(self.num_clients):
                total += self.primal_states[i][name] - self.dual_states[i][name] / self.rho
            new[name] = total / self.num_clients
        for i in range(self.num_clients):
            for name, w in new.items():
                self.dual_states[i][name] += self.rho * (w - self.primal_states[i][name])
        self.model.load_state_dict(new)


class FedAvgServer:
    def __init__(self, model, num_clients):
        self.model, self.num_clients = model, num_clients
        self.reset()

    def reset(self):
        self.total = OrderedDict((k, torch.zeros_like(v)) for k, v in self.model.state_dict().items())

    def receive(self, states):
        for k, v in states["primal"].items():
            self.total[k] += v / self.num_clients

    def finish(self):
        self.model.load_state_dict(self.total)
        self.reset()


def run_serial(rounds=2):
    model = CNN().cuda()
    knobs.apply(model)
    template = copy.deepcopy(model)
    clients = [BaseClient(i, template) for i in range(CLIENTS)]
    server = (FedAvgServer if FEDAVG else IIADMMServer)(model, CLIENTS)
    print("after the start: MiB", torch.cuda.memory_allocated() // 2 ** 20)
    for r in range(rounds):
        global_state = server.model.state_dict()
        local_states = []
        for c in clients:
            states = c.update(global_state)
            if FEDAVG:
                server.receive(states)
            else:
                local_states.append(states)
        print(f"round {r}: clients are done, MiB", torch.cuda.memory_allocated() // 2 ** 20)
        if FEDAVG:
            server.finish()
        else:
            server.update(local_states)
    return server


def main():
    server = run_serial()
    x, y = torch.rand(256, 1, 28, 28, device="cuda"), torch.randint(0, 62, (256,), device="cuda")
    with torch.no_grad():
        print("accuracy", (server.model(x).argmax(1) == y).float().mean().item())
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
