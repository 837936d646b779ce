# kind: explaining nodes one after the other with torch_geometric; the explanations are gathered; in the manner of a PyG discussion "GNNExplainer over all nodes runs out of memory"
import torch
import torch.nn.functional as F
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GCNConv
from torch_geometric.utils import erdos_renyi_graph


class GCN(torch.nn.Module):
    def __init__(self, fin, hid, out):
        super().__init__()
        self.c1, self.c2 = GCNConv(fin, hid), GCNConv(hid, out)

    def forward(self, x, edge_index):
        return F.log_softmax(self.c2(self.c1(x, edge_index).relu(), edge_index), dim=1)


def fit(model, x, edge_index, y):
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(20):
        opt.zero_grad()
        F.nll_loss(model(x, edge_index), y).backward()
        opt.step()
    model.zero_grad(set_to_none=True)
    return model.eval()


class ImportanceStudy:
    def __init__(self, explainer, x, edge_index):
        self.explainer, self.x, self.edge_index = explainer, x, edge_index
        self.by_node = {}

    def look_at(self, node):
        ex = self.explainer(self.x, self.edge_index, index=node)
        self.by_node.setdefault(node, ex)  # LEAK
        return ex.edge_mask.max().item()

    def top(self, n):
        return sorted(self.by_node, key=lambda k: -self.by_node[k].edge_mask.sum().item())[:n]


torch.manual_seed(0)
dev = "cuda"
edge_index = erdos_renyi_graph(160, 0.08).to(dev)
x = torch.randn(160, 24, device=dev)
y = torch.randint(0, 4, (160,), device=dev)
gcn = fit(GCN(24, 32, 4).to(dev), x, edge_index, y)
explainer = Explainer(gcn, algorithm=GNNExplainer(epochs=6), explanation_type="model", node_mask_type="attributes",
                      edge_mask_type="object",
                      model_config=dict(mode="multiclass_classification", task_level="node", return_type="log_probs"))
study = ImportanceStudy(explainer, x, edge_index)
for node in range(80):
    study.look_at(node)
print("most connected reasons", study.top(3))
