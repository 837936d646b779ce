# kind: second-order inner steps whose graph lives for one outer step; after tristandeleu/pytorch-maml issue 21
from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


class MetaConvModel(nn.Module):
    def __init__(self, hidden=32, out=5):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, hidden, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, 2, 1), nn.ReLU())
        self.classifier = nn.Linear(hidden * 16, out)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class ModelAgnosticMetaLearning:
    def __init__(self, model, optimizer, step_size=0.1, num_adaptation_steps=5):
        self.model, self.optimizer = model, optimizer
        self.step_size = step_size
        self.num_adaptation_steps = num_adaptation_steps

    def adapt(self, inputs, targets):
        params = OrderedDict(self.model.named_parameters())
        inner = []
        for _ in range(self.num_adaptation_steps):
            loss = F.cross_entropy(functional_call(self.model, params, (inputs,)), targets)
            grads = torch.autograd.grad(loss, params.values(), create_graph=True)
            params = OrderedDict((n, p - self.step_size * g) for (n, p), g in zip(params.items(), grads))
            inner.append(loss.item())
        return params, inner

    def get_outer_loss(self, batch):
        mean_outer = 0.0
        results = {"inner_losses": [], "accuracies": []}
        for (xs, ys), (xq, yq) in batch:
            params, inner = self.adapt(xs, ys)
            logits = functional_call(self.model, params, (xq,))
            mean_outer = mean_outer + F.cross_entropy(logits, yq) / len(batch)
            results["inner_losses"].append(inner)
            results["accuracies"].append((logits.argmax(1) == yq).float().mean().item())
        return mean_outer, results

    def train_iter(self, batch):
        self.optimizer.zero_grad()
        outer, results = self.get_outer_loss(batch)
        outer.backward()
        self.optimizer.step()
        results["mean_outer_loss"] = outer.item()
        return results


def tasks(n, device):
    out = []
    for _ in range(n):
        mk = lambda k: (torch.randn(5 * k, 1, 28, 28).to(device), torch.arange(5).repeat(k).to(device))
        out.append((mk(1), mk(5)))
    return out


if __name__ == "__main__":
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = MetaConvModel().to(device)
    meta = ModelAgnosticMetaLearning(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    history = []
    for steps in (1, 3, 5):
        meta.num_adaptation_steps = steps
        for it in range(20):
            history.append(meta.train_iter(tasks(3, device)))
        print(steps, history[-1]["mean_outer_loss"])
