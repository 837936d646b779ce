# kind: orthonormal bases of the inputs of each layer grow by the directions that a task adds and are bounded by the layer's width, gradients are projected off them, after the last task only the heads are tuned; after continual learning code (Gradient Projection Memory)
import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")
INPUT, WIDTH, CLASSES = 1024, 1024, 10
TASKS, STEPS_PER_TASK, HEAD_STEPS = 9, 11, 190
SAMPLES = 320


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(INPUT, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False),
                                     nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)])
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        self.heads = nn.ModuleList([nn.Linear(WIDTH, CLASSES) for _ in range(TASKS)])

    def forward(self, x, task, inputs=None):
        for layer in self.layers:
            if inputs is not None:
                inputs.append(x.detach())
            x = F.relu(layer(x))
        return self.heads[task](x)


class ProjectionMemory:
    def __init__(self, layers):
        self.bases = [None] * layers

    @torch.no_grad()
    def update(self, inputs, threshold):
        for i, x in enumerate(inputs):
            basis = self.bases[i]
            total = x.square().sum()
            rest = x if basis is None else x - (x @ basis) @ basis.t()
            have = 0.0 if basis is None else 1 - (rest.square().sum() / total).item()
            if have >= threshold:
                continue
            _, s, vh = torch.linalg.svd(rest, full_matrices=False)
            energy = have + torch.cumsum(s.square(), 0) / total
            k = int((energy < threshold).sum()) + 1
            new = vh[:k].t()
            merged = new if basis is None else torch.cat([basis, new], dim=1)
            self.bases[i] = torch.linalg.qr(merged[:, :x.shape[1]]).Q

    @torch.no_grad()
    def project(self, layers):
        for layer, basis in zip(layers, self.bases):
            if basis is not None:
                layer.weight.grad -= (layer.weight.grad @ basis) @ basis.t()

    def ranks(self):
        return [0 if b is None else b.shape[1] for b in self.bases]


class PermutedTask:
    def __init__(self, prototypes, seed):
        gen = torch.Generator().manual_seed(seed)
        self.prototypes = prototypes[:, torch.randperm(INPUT, generator=gen).to(device)]
        self.color = torch.randn(INPUT, 160, generator=gen).to(device) / 10

    def batch(self, size):
        labels = torch.randint(0, CLASSES, (size,), device=device)
        noise = torch.randn(size, 160, device=device) @ self.color.t()
        return self.prototypes[labels] + 0.5 * noise, labels


def main():
    torch.manual_seed(19)
    prototypes = torch.randn(CLASSES, INPUT, device=device)
    tasks = [PermutedTask(prototypes, t) for t in range(TASKS)]
    net, memory = Trunk().to(device), ProjectionMemory(4)
    for t, task in enumerate(tasks):
        optimizer = torch.optim.SGD(list(net.layers.parameters()) + list(net.heads[t].parameters()), lr=0.02)
        for _ in range(STEPS_PER_TASK):
            x, y = task.batch(128)
            loss = F.cross_entropy(net(x, t), y)
            optimizer.zero_grad()
            loss.backward()
            memory.project(net.layers)
            optimizer.step()
        inputs = []
        with torch.no_grad():
            net(task.batch(SAMPLES)[0], t, inputs)
        memory.update(inputs, threshold=min(0.95 + 0.004 * t, 0.98))
        print(f"task {t}: loss {loss.item():.3f}, ranks {memory.ranks()}")
    net.layers.requires_grad_(False)
    optimizer = torch.optim.SGD(net.heads.parameters(), lr=0.02)
    for step in range(HEAD_STEPS):
        t = step % TASKS
        x, y = tasks[t].batch(128)
        logits = net(x, t)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 38 == 0:
            print(f"heads, step {step}: accuracy on task {t} {(logits.argmax(1) == y).float().mean().item():.2f}")


if __name__ == "__main__":
    main()
