# kind: Lanczos basis for the Hessian's spectrum grows by a vector per iteration, is restarted after 24 and given up after the estimate, between rounds of training; from noahgolmant/pytorch-hessian-eigenthings and amirgholami/PyHessian
import torch
import torch.nn as nn


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


class Hessian:
    def __init__(self, model, x, y):
        self.params = [p for p in model.parameters()]
        loss = nn.functional.mse_loss(model(x), y)
        self.grads = torch.autograd.grad(loss, self.params, create_graph=True)
        self.size = sum(p.numel() for p in self.params)

    def __matmul__(self, v):
        parts, i = [], 0
        for p in self.params:
            parts.append(v[i:i + p.numel()].view_as(p))
            i += p.numel()
        return flat(torch.autograd.grad(self.grads, self.params, grad_outputs=parts, retain_graph=True)).detach()


def lanczos(op, start, m):
    basis, alpha, beta = [start / start.norm()], [], []
    for j in range(m):
        w = op @ basis[-1]
        a = torch.dot(w, basis[-1])
        alpha.append(a.item())
        for q in basis:
            w -= torch.dot(w, q) * q
        b = w.norm()
        if j == m - 1 or b < 1e-7:
            break
        beta.append(b.item())
        basis.append(w / b)
    t = torch.diag(torch.tensor(alpha))
    k = len(alpha)
    for i, b in enumerate(beta[:k - 1]):
        t[i, i + 1] = t[i + 1, i] = b
    values, vectors = torch.linalg.eigh(t)
    ritz = torch.stack(basis[:k], 1) @ vectors[:, -1].to(start.device)
    return values[-1].item(), ritz


def top_eigenvalue(model, x, y, restarts=2, m=24):
    op = Hessian(model, x, y)
    v = torch.randn(op.size, device=x.device)
    for _ in range(restarts):
        value, v = lanczos(op, v, m)
    return value


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(24, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1)).cuda()
teacher = torch.randn(24, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
probe = torch.randn(64, 24)
for step in range(1, 161):
    x = torch.randn(64, 24)
    loss = nn.functional.mse_loss(model(x.cuda()), torch.sin(x @ teacher * 0.4).cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 32 == 0:
        lam = top_eigenvalue(model, probe.cuda(), torch.sin(probe @ teacher * 0.4).cuda())
        print(f"step {step} loss {loss.item():.4f} top eigenvalue {lam:.3f}")
