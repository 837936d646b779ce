# kind: running mean of the task losses for dynamic weight averaging keeps their graphs, and retain_graph=True, left over from a fight with an error, keeps the buffers of these; in the manner of Stack Overflow "Trying to backward through the graph a second time" answers for MTL code (lorenmt/mtan style)
import torch
import torch.nn as nn
import torch.nn.functional as F


class DynamicWeightAverage:
    def __init__(self, n_tasks, temperature=2.0):
        self.T = temperature
        self.n = n_tasks
        self.last = None
        self.weights = None

    def __call__(self, losses):
        losses = torch.stack(losses)
        if self.last is None:
            weights = torch.ones_like(losses)
        else:
            ratio = losses / (self.last + 1e-8)
            weights = self.n * torch.softmax(ratio / self.T, dim=0)
        self.last = 0.5 * losses + 0.5 * (losses if self.last is None else self.last)  # LEAK
        # weights are constants for the optimizer (modified by an inplace operation otherwise)
        self.weights = weights.detach()
        return (self.weights * losses).sum()


class MTANLite(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.shared = nn.Sequential(
            nn.Conv2d(3, ch, 3, padding=1), nn.ReLU(),
            nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU(),
        )
        self.seg = nn.Conv2d(ch, 7, 1)
        self.depth = nn.Conv2d(ch, 1, 1)
        self.normal = nn.Conv2d(ch, 3, 1)

    def forward(self, x):
        h = self.shared(x)
        return self.seg(h), self.depth(h), F.normalize(self.normal(h), dim=1)


def task_losses(outputs, targets):
    seg, depth, normal = outputs
    seg_t, depth_t, normal_t = targets
    return [
        F.cross_entropy(seg, seg_t),
        F.l1_loss(depth, depth_t),
        1 - (normal * normal_t).sum(1).mean(),
    ]


def fake_nyu(batch_size, size, device):
    image = torch.rand(batch_size, 3, size, size, device=device)
    seg = torch.randint(0, 7, (batch_size, size, size), device=device)
    depth = torch.rand(batch_size, 1, size, size, device=device)
    normal = F.normalize(torch.randn(batch_size, 3, size, size, device=device), dim=1)
    return image, (seg, depth, normal)


if __name__ == "__main__":
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = MTANLite().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    dwa = DynamicWeightAverage(3)
    for it in range(60):
        image, targets = fake_nyu(2, 32, device)
        losses = task_losses(model(image), targets)
        total = dwa(losses)
        optimizer.zero_grad()
        # RuntimeError: Trying to backward through the graph a second time -> retain_graph
        total.backward(retain_graph=True)  # ALSO
        optimizer.step()
        if it % 20 == 0:
            w = ", ".join(f"{v:.2f}" for v in dwa.weights.tolist())
            print(f"iter {it:3d} total {total.item():.4f} weights [{w}]")
