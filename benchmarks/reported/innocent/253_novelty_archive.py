# kind: innocent, novelty search adds behaviours to an archive until it has 300, after which a random entry is replaced; own, in the manner of uber-research/deep-neuroevolution ports to PyTorch
import torch
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class MazePolicy(nn.Module):
    def __init__(self, obs=10, hidden=24, act=2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, act), nn.Tanh())

    def forward(self, obs):
        return self.net(obs)


class NoveltyArchive:
    def __init__(self, capacity=300, k=10):
        self.capacity, self.k = capacity, k
        self.genomes, self.behaviours = [], []

    def novelty(self, behaviour):
        if len(self.behaviours) < 2:
            return torch.ones((), device=behaviour.device)
        dist = torch.cdist(behaviour.flatten()[None], torch.stack([b.flatten() for b in self.behaviours]))[0]
        return dist.topk(min(self.k, dist.numel()), largest=False).values.mean()

    def add(self, genome, behaviour, generator):
        if len(self.genomes) < self.capacity:
            self.genomes.append(genome)
            self.behaviours.append(behaviour)
        else:
            slot = int(torch.randint(self.capacity, (1,), generator=generator))
            self.genomes[slot] = genome
            self.behaviours[slot] = behaviour

    def __len__(self):
        return len(self.genomes)


@torch.no_grad()
def rollout(policy, start, steps=12):
    """Path of 128 walkers in an empty maze; the path is the behaviour."""
    pos = start.clone()
    path = []
    for t in range(steps):
        sensors = torch.cat([pos, pos.sin(), pos.cos(), pos.abs(), torch.full_like(pos, t / steps)], 1)
        pos = (pos + 0.1 * policy(sensors)).clamp(-1, 1)
        path.append(pos)
    return torch.stack(path, 1)


def main(generations=140, population=4, sigma=0.05, lr=0.1):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    policy = MazePolicy().cuda()
    theta = parameters_to_vector(policy.parameters()).detach()
    start = torch.rand(128, 2, device="cuda") * 2 - 1
    archive = NoveltyArchive()
    for g in range(generations):
        noises, scores = [], []
        for _ in range(population):
            eps = torch.randn_like(theta)
            genome = theta + sigma * eps
            vector_to_parameters(genome, policy.parameters())
            behaviour = rollout(policy, start)
            noises.append(eps)
            scores.append(archive.novelty(behaviour))
            archive.add(genome, behaviour, generator)
        s = torch.stack(scores)
        s = (s - s.mean()) / (s.std() + 1e-8)
        theta = theta + lr / (population * sigma) * (s @ torch.stack(noises))
        if g % 35 == 34:
            print(f"generation {g + 1}: archive {len(archive)}, best novelty {max(x.item() for x in scores):.4f}")


if __name__ == "__main__":
    main()
