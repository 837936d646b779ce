# kind: per-sample gradients are stacked on every parameter, clearing happens for the optimizer's parameters and misses those of a part left out of it; from meta-pytorch/opacus issue 413 / PR 16 (grad_sample accumulates in a list)
import torch
import torch.nn as nn
import torch.nn.functional as F


class GradSampler:
    def __init__(self, module):
        self.module = module
        self.acts = {}
        for m in module.modules():
            if isinstance(m, nn.Linear):
                m.register_forward_hook(self.capture_activations)
                m.register_full_backward_hook(self.capture_backprops)

    def capture_activations(self, layer, inputs, output):
        if layer.training:
            self.acts[layer] = inputs[0].detach()

    def capture_backprops(self, layer, grad_input, grad_output):
        a, b = self.acts.pop(layer), grad_output[0].detach() * len(grad_output[0])
        self.stack(layer.weight, torch.einsum("ni,nj->nij", b, a))
        self.stack(layer.bias, b)

    @staticmethod
    def stack(param, sample):
        if not hasattr(param, "grad_sample"):
            param.grad_sample = []
        param.grad_sample.append(sample)  # LEAK


class DPOptimizer:
    def __init__(self, inner, noise=0.4, max_norm=1.0):
        self.inner, self.noise, self.max_norm = inner, noise, max_norm

    @property
    def params(self):
        return [p for g in self.inner.param_groups for p in g["params"]]

    def step(self):
        samples = [torch.cat(p.grad_sample) for p in self.params]
        norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples], 1).norm(dim=1)
        factor = (self.max_norm / (norms + 1e-6)).clamp(max=1.0)
        for p, s in zip(self.params, samples):
            g = torch.einsum("n,n...->...", factor, s)
            p.grad = (g + self.noise * self.max_norm * torch.randn_like(g)) / len(s)
        self.inner.step()

    def zero_grad(self):
        self.inner.zero_grad()
        for p in self.params:
            p.grad_sample = []


class Tabular(nn.Module):
    def __init__(self, fields=30, width=64, classes=3):
        super().__init__()
        self.project = nn.Linear(fields, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(F.relu(self.hidden(F.relu(self.project(x)))))


def people(n, fields=30):
    x = torch.randn(n, fields)
    return x, (x[:, :3].argmax(1))


torch.manual_seed(11)
model = Tabular().cuda()
sampler = GradSampler(model)
trained = [p for name, p in model.named_parameters() if not name.startswith("project")]
optimizer = DPOptimizer(torch.optim.SGD(trained, lr=0.3, momentum=0.5))

x, y = people(64 * 30)
for epoch in range(3):
    order = torch.randperm(len(x))
    for ids in order.split(64):
        optimizer.zero_grad()
        logits = model(x[ids].cuda())
        loss = F.cross_entropy(logits, y[ids].cuda())
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss %.3f" % loss.item())
