# kind: evolution strategy with a family tree of all individuals; why it is none: an individual's weights are dropped once it leaves the population, only its numbers stay in the tree
import itertools
import random

import torch


class Individual:
    serial = itertools.count()

    def __init__(self, genome, parent=None):
        self.id = next(self.serial)
        self.genome = genome
        self.parent = parent
        self.fitness = None

    def retire(self):
        self.genome = None


def evaluate(ind, probes):
    a, b = ind.genome[:4096].view(64, 64), ind.genome[4096:].view(64, 64)
    out = torch.tanh(probes @ a) @ b
    return -(out - probes.roll(1, 1)).pow(2).mean().item()


@torch.no_grad()
def evolve(generations=700, mu=4, lam=12):
    population = [Individual(torch.randn(8192, device="cuda") * 0.05) for _ in range(mu)]
    tree = list(population)
    for _ in range(generations):
        probes = torch.randn(48, 64, device="cuda")
        children = []
        for _ in range(lam):
            p = random.choice(population)
            children.append(Individual(p.genome + 0.01 * torch.randn_like(p.genome), p))
        tree += children
        pool = population + children
        for ind in pool:
            ind.fitness = evaluate(ind, probes)
        pool.sort(key=lambda i: -i.fitness)
        population, gone = pool[:mu], pool[mu:]
        for ind in gone:
            ind.retire()
    return population[0], tree


random.seed(0)
torch.manual_seed(0)
best, tree = evolve()
print(best.fitness, len(tree))
