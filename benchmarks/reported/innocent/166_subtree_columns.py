# kind: symbolic regression by genetic programming evaluates each distinct subtree once over the data, columns that no individual of the generation uses are swept, the depth limit is raised until it stops; after genetic programming toolkits
import random

import torch

device = torch.device("cuda")
ROWS = 131072
POPULATION, GENERATIONS = 40, 150
MAX_NODES = 21
UNARY, BINARY = ("sin", "tanh", "sq"), ("add", "mul", "sub", "div")


def apply_op(name, *args):
    if name == "sin":
        return torch.sin(args[0])
    if name == "tanh":
        return torch.tanh(args[0])
    if name == "sq":
        return args[0].square().clamp(max=1e4)
    a, b = args
    if name in ("add", "sub"):
        return a + b if name == "add" else a - b
    return (a * b).clamp(-1e4, 1e4) if name == "mul" else a / (1.0 + b.square())


def random_tree(depth):
    if depth == 0 or random.random() < 0.15:
        return ("x", random.randrange(5))
    if random.random() < 0.3:
        return (random.choice(UNARY), random_tree(depth - 1))
    return (random.choice(BINARY), random_tree(depth - 1), random_tree(depth - 1))


def children(tree):
    return tree[1:] if tree[0] != "x" else ()


def nodes(tree):
    yield tree
    for child in children(tree):
        yield from nodes(child)


def depth_of(tree):
    return 1 + max((depth_of(c) for c in children(tree)), default=-1)


def replace_random(tree, new):
    if tree[0] == "x" or random.random() < 0.25:
        return new
    i = random.randrange(1, len(tree))
    return tree[:i] + (replace_random(tree[i], new),) + tree[i + 1:]


class Columns:
    def __init__(self, data):
        self.data = data
        self.known = {}
        self.hits = self.misses = 0

    def value(self, tree):
        if tree[0] == "x":
            return self.data[tree[1]]
        column = self.known.get(tree)
        if column is not None:
            self.hits += 1
            return column
        self.misses += 1
        column = apply_op(tree[0], *[self.value(c) for c in children(tree)])
        self.known[tree] = column
        return column

    def sweep(self, population):
        used = {n for tree in population for n in nodes(tree)}
        for tree in [t for t in self.known if t not in used]:
            del self.known[tree]


def fitness(column, target):
    c = column - column.mean()
    r = (c * target).sum() / (c.norm() * target.norm() + 1e-6)
    return r.abs().item()


def offspring(ranked, limit, taken):
    pick = lambda: min(random.sample(range(len(ranked)), 2))
    for attempt in range(200):
        mother, father = ranked[pick()], ranked[pick()]
        donor = random_tree(2) if random.random() < 0.5 else random.choice(list(nodes(father)))
        child = replace_random(mother, donor)
        size = sum(1 for _ in nodes(child))
        if limit - 2 <= depth_of(child) <= limit and size <= MAX_NODES and child not in taken:
            break
    taken.add(child)
    return child


def main():
    random.seed(6)
    torch.manual_seed(6)
    data = [torch.randn(ROWS, device=device) for _ in range(5)]
    target = torch.sin(data[0] * data[1]) + torch.tanh(data[2] - data[3] * data[4]) + 0.3 * data[0].square()
    target = target - target.mean()
    columns = Columns(data)
    population = [random_tree(2) for _ in range(POPULATION)]
    for generation in range(GENERATIONS):
        limit = min(2 + generation // 15, 6)
        scored = sorted(((fitness(columns.value(t), target), t) for t in population), reverse=True)
        ranked = [t for _, t in scored]
        taken = set(ranked[:4])
        population = ranked[:4] + [offspring(ranked, limit, taken) for _ in range(POPULATION - 4)]
        columns.sweep(population)
        if generation % 15 == 0:
            print(f"generation {generation}: best r {scored[0][0]:.3f}, limit {limit}, columns {len(columns.known)}, "
                  f"hits {columns.hits}, misses {columns.misses}")


if __name__ == "__main__":
    main()
