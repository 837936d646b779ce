# kind: a global dict caches the GPU graph of every new SMILES and new ones keep coming; after chemprop/chemprop issue 32
import random

import torch
import torch.nn as nn

ATOM_FDIM = 133
BOND_FDIM = 14
DEVICE = torch.device("cuda")

SMILES_TO_GRAPH = {}


def clear_cache():
    SMILES_TO_GRAPH.clear()


class MolGraph:
    def __init__(self, smiles):
        self.smiles = smiles
        self.n_atoms = len(smiles)
        src = list(range(self.n_atoms - 1)) + list(range(1, self.n_atoms))
        dst = list(range(1, self.n_atoms)) + list(range(self.n_atoms - 1))
        f_atoms = torch.zeros(self.n_atoms, ATOM_FDIM)
        for i, c in enumerate(smiles):
            f_atoms[i, ord(c) % ATOM_FDIM] = 1
        self.f_atoms = f_atoms.to(DEVICE)  # LEAK
        self.f_bonds = torch.zeros(len(src), BOND_FDIM).to(DEVICE)  # ALSO
        self.edges = torch.tensor([src, dst]).to(DEVICE)  # ALSO


class BatchMolGraph:
    def __init__(self, mol_graphs):
        self.f_atoms = torch.cat([m.f_atoms for m in mol_graphs])
        self.f_bonds = torch.cat([m.f_bonds for m in mol_graphs])
        offset, edges = 0, []
        for m in mol_graphs:
            edges.append(m.edges + offset)
            offset += m.n_atoms
        self.edges = torch.cat(edges, dim=1)
        self.a_scope = [m.n_atoms for m in mol_graphs]


def mol2graph(smiles_batch, cache=True):
    mol_graphs = []
    for smiles in smiles_batch:
        if smiles in SMILES_TO_GRAPH:
            mol_graph = SMILES_TO_GRAPH[smiles]
        else:
            mol_graph = MolGraph(smiles)
            if cache:
                SMILES_TO_GRAPH[smiles] = mol_graph  # ALSO
        mol_graphs.append(mol_graph)
    return BatchMolGraph(mol_graphs)


class MPNN(nn.Module):
    def __init__(self, hidden=64, depth=3):
        super().__init__()
        self.depth = depth
        self.W_i = nn.Linear(ATOM_FDIM, hidden)
        self.W_h = nn.Linear(hidden + BOND_FDIM, hidden)
        self.ffn = nn.Linear(hidden, 1)

    def forward(self, batch):
        h = torch.relu(self.W_i(batch.f_atoms))
        src, dst = batch.edges
        for _ in range(self.depth):
            msg = torch.relu(self.W_h(torch.cat([h[src], batch.f_bonds], dim=1)))
            h = h + torch.zeros_like(h).index_add(0, dst, msg)
        mols = torch.stack([c.mean(dim=0) for c in h.split(batch.a_scope)])
        return self.ffn(mols)


class GeneticSearch:
    """Proposes new molecules and scores them with the model."""

    def __init__(self, model, pop_size=16, length=60):
        self.model = model
        self.pop_size = pop_size
        self.pool = ["".join(random.choice("CNOSPFc1n()=") for _ in range(length)) for _ in range(pop_size)]

    def mutate(self, s):
        s = list(s)
        for _ in range(4):
            s[random.randrange(len(s))] = random.choice("CNOSPFc1n()=")
        return "".join(s)

    @torch.no_grad()
    def generation(self):
        children = [self.mutate(random.choice(self.pool)) for _ in range(self.pop_size)]
        scores = self.model(mol2graph(children)).flatten().tolist()
        ranked = [s for _, s in sorted(zip(scores, children), reverse=True)]
        self.pool = (ranked + self.pool)[: self.pop_size]
        return max(scores)


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    search = GeneticSearch(MPNN().to(DEVICE).eval())
    for gen in range(100):
        best = search.generation()
        if gen % 25 == 0:
            print(gen, best)
