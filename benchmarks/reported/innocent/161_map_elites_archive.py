# kind: illumination search keeps the best controller for each niche of a behaviour grid, new niches are discovered ever more rarely, afterwards an elite is only overwritten by a better one; after quality-diversity programs (MAP-Elites, pyribs / QDax scripts)
import random

import torch
import torch.nn.functional as F

DEV = "cuda"
OBS, HIDDEN, ACT = 48, 512, 8
GRID = 9


def sizes():
    return [(HIDDEN, OBS), (HIDDEN, HIDDEN), (ACT, HIDDEN), (ACT,)]


N_PARAMS = sum(torch.Size(s).numel() for s in sizes())


def unpack(genome):
    parts, at = [], 0
    for shape in sizes():
        n = torch.Size(shape).numel()
        parts.append(genome[at:at + n].view(shape))
        at += n
    return parts


def random_controller():
    genome = torch.randn(N_PARAMS, device=DEV) * 0.05
    genome[-ACT:] = torch.randn(ACT, device=DEV) * 0.5
    return genome


def mutate(a, b):
    child = a + 0.002 * torch.randn_like(a) + random.gauss(0, 0.3) * (b - a)
    child[-ACT:] = a[-ACT:] + 0.8 * torch.randn(ACT, device=DEV)
    return child


def simulate(genome, observations, target):
    w1, w2, w3, bias = unpack(genome)
    h = torch.tanh(F.linear(observations, w1))
    h = torch.tanh(F.linear(h, w2))
    action = torch.tanh(F.linear(h, w3, bias))
    contact = torch.sigmoid(3 * action)
    left, right = contact[:, :4].mean(), contact[:, 4:].mean()
    effort = action.diff(dim=0).pow(2).mean()
    fitness = -(action.mean(1) - target).pow(2).mean() - 0.1 * effort
    return fitness.item(), (left.item(), right.item())


class Archive:
    def __init__(self, bins):
        self.bins = bins
        self.elites = {}

    def niche(self, descriptor):
        low, high = 0.2, 0.8
        return tuple(min(self.bins - 1, max(0, int((d - low) / (high - low) * self.bins))) for d in descriptor)

    def add(self, genome, fitness, descriptor):
        cell = self.niche(descriptor)
        held = self.elites.get(cell)
        if held is None:
            self.elites[cell] = (fitness, genome)
            return "new"
        if fitness > held[0]:
            self.elites[cell] = (fitness, genome)
            return "better"
        return "worse"

    def sample(self, k):
        return [self.elites[c][1] for c in random.choices(list(self.elites), k=k)]

    def qd_score(self):
        return sum(1 + f for f, _ in self.elites.values())


def main():
    random.seed(3)
    torch.manual_seed(3)
    observations = torch.randn(128, OBS, device=DEV)
    target = torch.sin(torch.linspace(0, 12, 128, device=DEV)) * 0.3
    archive = Archive(GRID)
    for generation in range(240):
        if generation < 4:
            children = [random_controller() for _ in range(6)]
        else:
            children = [mutate(a, b) for a, b in zip(archive.sample(6), archive.sample(6))]
        outcome = [archive.add(c, *simulate(c, observations, target)) for c in children]
        if generation % 24 == 0:
            print(f"generation {generation}: {len(archive.elites)}/{GRID * GRID} niches, "
                  f"score {archive.qd_score():.2f}, new {outcome.count('new')}, better {outcome.count('better')}")
    best = max(archive.elites.values(), key=lambda e: e[0])
    print("best fitness", round(best[0], 4))


if __name__ == "__main__":
    main()
