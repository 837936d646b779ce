# kind: messages are written into some rows of a node column again and again while gradients are on, the column's history gets one more partial write with its inputs for every edge type and round; from dmlc/dgl issue 1269
import torch
import torch.nn as nn


class Frame(dict):
    """Named columns of one node type."""

    def update_rows(self, name, rows, values):
        old = self.get(name)
        if old is None:
            old = values.new_zeros(self.num_rows, values.shape[1])
        self[name] = old.index_copy(0, rows, values)  # LEAK

    def __init__(self, num_rows):
        super().__init__()
        self.num_rows = num_rows


class HeteroGraph:
    def __init__(self, num_nodes, edges):
        self.frames = {t: Frame(n) for t, n in num_nodes.items()}
        self.edges = {k: (s.cuda(), d.cuda()) for k, (s, d) in edges.items()}

    @property
    def canonical_etypes(self):
        return list(self.edges)

    def send_and_recv(self, etype, message, reduce, apply_node=None):
        src_type, _, dst_type = etype
        src, dst = self.edges[etype]
        rows, where = dst.unique(return_inverse=True)
        mail = message(self.frames[src_type]["h"][src])
        out = reduce(mail, where, len(rows))
        if apply_node is not None:
            out = apply_node(out)
        self.frames[dst_type].update_rows("x", rows, out)


def copy_u(h):
    return h


def mean(mail, where, n):
    total = mail.new_zeros(n, mail.shape[1]).index_add(0, where, mail)
    count = torch.bincount(where, minlength=n).clamp(min=1).unsqueeze(1)
    return total / count


class Recommender(nn.Module):
    def __init__(self, num_nodes, dim=48):
        super().__init__()
        self.h = nn.ParameterDict({t: nn.Parameter(torch.randn(n, dim) * 0.1) for t, n in num_nodes.items()})
        self.weight = nn.ModuleDict({"played": nn.Linear(dim, dim), "played_by": nn.Linear(dim, dim),
                                     "likes": nn.Linear(dim, dim)})

    def refresh(self, g):
        for t, p in self.h.items():
            g.frames[t]["h"] = p
        for etype in g.canonical_etypes:
            g.send_and_recv(etype, copy_u, mean, lambda x, r=etype[1]: torch.tanh(self.weight[r](x)))

    def top(self, g, user):
        scores = g.frames["game"]["x"] @ g.frames["user"]["x"][user]
        return scores.topk(3).indices.tolist()


def random_edges(n_src, n_dst, n):
    return torch.randint(0, n_src, (n,)), torch.randint(0, n_dst, (n,))


def main():
    torch.manual_seed(0)
    num_nodes = {"user": 400, "game": 150}
    g = HeteroGraph(num_nodes, {
        ("user", "played", "game"): random_edges(400, 150, 700),
        ("game", "played_by", "user"): random_edges(150, 400, 500),
        ("user", "likes", "game"): random_edges(400, 150, 200),
    })
    model = Recommender(num_nodes).cuda().eval()
    for tick in range(100):
        user = tick % 400
        model.refresh(g)
        shown = model.top(g, user)
        if tick % 20 == 0:
            print(f"tick {tick}: user {user} is shown {shown}")


if __name__ == "__main__":
    main()
