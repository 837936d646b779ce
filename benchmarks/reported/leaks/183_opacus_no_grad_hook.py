# kind: the forward hook appends the layer's input whenever the layer is in train mode; forwards under no_grad have no backward to pop it; after meta-pytorch/opacus issue 176
import torch
import torch.nn as nn
import torch.nn.functional as F


def capture_activations(layer, inputs, outputs):
    """forward hook: keeps the layer's input until the backward hook consumes it"""
    if not layer.training:
        return
    if not hasattr(layer, "activations"):
        layer.activations = []
    layer.activations.append(inputs[0].detach())  # LEAK


def capture_backprops(layer, grad_input, grad_output):
    backprops = grad_output[0].detach()
    A = layer.activations.pop()
    n = A.shape[0]
    if isinstance(layer, nn.Linear):
        gs = torch.einsum("ni,nj->nij", backprops * n, A)
    else:
        A = F.unfold(A, layer.kernel_size, padding=layer.padding, stride=layer.stride)
        B = (backprops * n).reshape(n, -1, A.shape[-1])
        gs = torch.einsum("noq,npq->nop", B, A).reshape(n, *layer.weight.shape)
    layer.weight.grad_sample = gs
    if layer.bias is not None:
        dims = tuple(range(2, backprops.dim()))
        layer.bias.grad_sample = (backprops * n).sum(dim=dims) if dims else backprops * n


class GradSampleModule(nn.Module):
    def __init__(self, module):
        super().__init__()
        self._module = module
        for layer in module.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                layer.register_forward_hook(capture_activations)  # ALSO
                layer.register_full_backward_hook(capture_backprops)

    def forward(self, x):
        return self._module(x)


def dp_step(model, optimizer, max_norm=1.0, sigma=1.0):
    params = [p for p in model.parameters() if p.requires_grad]
    norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in params]).norm(dim=0)
    factor = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for p in params:
        p.grad = torch.einsum("n,n...->...", factor, p.grad_sample) / len(factor)
        p.grad += sigma * max_norm / len(factor) * torch.randn_like(p)
        del p.grad_sample
    optimizer.step()


def convnet():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 7 * 7, 32), nn.ReLU(), nn.Linear(32, 10))


def accuracy(model, batches):
    correct = total = 0
    with torch.no_grad():
        for x, y in batches:
            x, y = x.cuda(), y.cuda()
            pred = model(x).argmax(dim=1)
            correct += (pred == y).sum().item()
            total += y.numel()
    return correct / total


def fake_mnist(n, bs):
    for _ in range(n):
        yield torch.randn(bs, 1, 28, 28), torch.randint(0, 10, (bs,))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = GradSampleModule(convnet()).cuda()
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (x, y) in enumerate(fake_mnist(60, 32)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        dp_step(model, optimizer)
        acc = accuracy(model, fake_mnist(1, 64))
        if step % 20 == 0:
            print(step, loss.item(), acc)
