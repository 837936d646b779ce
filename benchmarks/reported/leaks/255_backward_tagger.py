# kind: a home-made profiler writes each module's output into the metadata of that output's own grad_fn, a cycle through C++ that no collector sees; own
import collections
import time

import torch
import torch.nn as nn


class BackwardTagger:
    """Names the nodes of the backward graph after the modules that made them,
    so that slow backward nodes can be reported with the shape they had."""

    def __init__(self, model):
        self.times = collections.defaultdict(float)
        self.calls = collections.Counter()
        self.handles = []
        self._t0 = {}
        for name, module in model.named_modules():
            if not list(module.children()):
                self.handles.append(module.register_forward_pre_hook(self._pre(name)))
                self.handles.append(module.register_forward_hook(self._post(name)))

    def _pre(self, name):
        def hook(module, inputs):
            self._t0[name] = time.perf_counter()
        return hook

    def _post(self, name):
        def hook(module, inputs, output):
            self.times[name] += time.perf_counter() - self._t0[name]
            self.calls[name] += 1
            node = output.grad_fn
            if node is not None:
                node.metadata["module"] = name
                node.metadata["output"] = output  # LEAK
        return hook

    def report(self, top=5):
        rows = sorted(self.times.items(), key=lambda kv: -kv[1])[:top]
        for name, t in rows:
            print(f"{name:20s} {self.calls[name]:6d} calls {1e3 * t:8.2f} ms")

    def close(self):
        for h in self.handles:
            h.remove()


class ConvNet(nn.Module):
    def __init__(self, width=16, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.act1 = nn.ReLU()
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.act2 = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = self.act1(self.stem(x))
        x = self.act2(self.down(x))
        return self.head(self.pool(x).flatten(1))


torch.manual_seed(0)
device = torch.device("cuda")
model = ConvNet().to(device)
tagger = BackwardTagger(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()

N_STEPS = 100
for i in range(N_STEPS):
    images = torch.randn(8, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (8,), device=device)
    loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (i + 1) % 50 == 0:
        print(f"step {i + 1} loss {loss.item():.4f}")

tagger.report()
tagger.close()
print(f"{torch.cuda.memory_allocated() / 2**20:.1f} MiB allocated")
