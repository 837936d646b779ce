# kind: pyg-team/pytorch_geometric style link prediction, "GPU memory slowly increases": a cache keyed by a tensor never hits
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import to_undirected


class Encoder(torch.nn.Module):
    def __init__(self, cin, hidden):
        super().__init__()
        self.conv1 = SAGEConv(cin, hidden)
        self.conv2 = SAGEConv(hidden, hidden)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class LinkPredictor:
    def __init__(self, data):
        self.data = data
        self.model = Encoder(data.num_features, 64).cuda()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self._neg_cache = {}

    def negatives(self, pos):
        # sampling is slow, so keep what was sampled for these edges
        if pos not in self._neg_cache:
            neg = torch.randint(0, self.data.num_nodes, pos.shape, device=pos.device)
            self._neg_cache[pos] = neg  # LEAK
        return self._neg_cache[pos]

    def decode(self, z, edges):
        return (z[edges[0]] * z[edges[1]]).sum(-1)

    def step(self, ids):
        self.model.train()
        pos = self.data.edge_index[:, ids]
        neg = self.negatives(pos)
        z = self.model(self.data.x, self.data.edge_index)
        score = torch.cat([self.decode(z, pos), self.decode(z, neg)])
        label = torch.cat([torch.ones(pos.size(1)), torch.zeros(neg.size(1))]).cuda()
        loss = F.binary_cross_entropy_with_logits(score, label)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def make_graph(nodes=4000, edges=60000):
    edge_index = to_undirected(torch.randint(0, nodes, (2, edges)))
    return Data(x=torch.randn(nodes, 64), edge_index=edge_index).to("cuda")


graph = make_graph()
predictor = LinkPredictor(graph)
batches = torch.randperm(graph.num_edges).split(4096)
for epoch in range(7):
    total = 0.0
    for ids in batches:
        total += predictor.step(ids)
    print("epoch", epoch, "loss", total / len(batches), torch.cuda.memory_allocated() >> 20, "MiB")
