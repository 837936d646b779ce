# kind: per-sample gradients of five micro-batches are stacked before they are clipped and cleared, a logical step at a time; from meta-pytorch/opacus PR 16 (virtual steps) and issue 413
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

MICRO, PER_STEP, STEPS = 16, 5, 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(40, 64), nn.Linear(64, 4)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


def sample_loss(params, x, y):
    return F.cross_entropy(functional_call(net, params, (x[None],)), y[None])


per_sample = vmap(grad(sample_loss), in_dims=(None, 0, 0))


class VirtualStepper:
    def __init__(self, net, opt, clip=1.0, noise=0.3):
        self.net, self.opt, self.clip, self.noise = net, opt, clip, noise
        self.pending = []

    def virtual_step(self, x, y):
        params = {k: v.detach() for k, v in self.net.named_parameters()}
        self.pending.append(per_sample(params, x, y))

    def step(self):
        norms = [torch.stack([g.flatten(1).norm(dim=1) for g in chunk.values()]).norm(dim=0) for chunk in self.pending]
        n = sum(map(len, norms))
        for name, p in self.net.named_parameters():
            total = sum(torch.einsum("n,n...->...", (self.clip / (s + 1e-6)).clamp(max=1), chunk[name]) for s, chunk in zip(norms, self.pending))
            p.grad = (total + self.noise * self.clip * torch.randn_like(total)) / n
        self.opt.step()
        self.opt.zero_grad()
        self.pending = []
        return torch.cat(norms).median().item()


torch.manual_seed(0)
net = Net().cuda()
stepper = VirtualStepper(net, torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.6))
for i in range(STEPS * PER_STEP):
    x = torch.randn(MICRO, 40)
    y = x[:, :4].argmax(1)
    stepper.virtual_step(x.cuda(), y.cuda())
    with torch.no_grad():
        loss = F.cross_entropy(net(x.cuda()), y.cuda()).item()
    if (i + 1) % PER_STEP == 0:
        median = stepper.step()
    if (i + 1) % (8 * PER_STEP) == 0:
        print(f"step {(i + 1) // PER_STEP}: loss {loss:.3f} median norm {median:.3f}")
