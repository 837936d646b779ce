# kind: backward(create_graph=True) leaves cycles param -> grad -> graph, every trained model stays after its run; from kach/gradient-descent-the-ultimate-optimizer pull request 1, pytorch issue 4661
import gc
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore", message="Using backward")


class FullyConnected(nn.Module):
    def __init__(self, num_inp=64, num_hid=128, num_out=10):
        super().__init__()
        self.layer1 = nn.Linear(num_inp, num_hid)
        self.layer2 = nn.Linear(num_hid, num_out)

    def forward(self, x):
        return F.log_softmax(self.layer2(torch.tanh(self.layer1(x))), dim=1)


class HyperSGD:
    """SGD whose learning rate is itself moved along its hypergradient."""

    def __init__(self, params, lr=0.05, hyper_lr=1e-3):
        self.params = list(params)
        self.log_lr = torch.tensor(lr, device="cuda").log()
        self.hyper_lr = hyper_lr
        self.previous = None

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        grads = [p.grad.detach().clone() for p in self.params]
        if self.previous is not None:
            dot = sum((g * q).sum() for g, q in zip(grads, self.previous))
            self.log_lr += self.hyper_lr * dot.clamp(-1, 1)
        for p, g in zip(self.params, grads):
            p -= self.log_lr.exp() * g
        self.previous = grads


def batches(n, seed):
    gen = torch.Generator().manual_seed(seed)
    centers = torch.randn(10, 64, generator=gen)
    for _ in range(n):
        y = torch.randint(0, 10, (128,), generator=gen)
        x = centers[y] + torch.randn(128, 64, generator=gen)
        yield x.cuda(), y.cuda()


def train_run(seed, steps=4):
    torch.manual_seed(seed)
    model = FullyConnected().cuda()
    optimizer = HyperSGD(model.parameters())
    for x, y in batches(steps, seed):
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward(create_graph=True)  # LEAK
        optimizer.step()
    return loss.item(), optimizer.log_lr.exp().item()


def main():
    results = []
    for seed in range(30):
        results.append(train_run(seed))
        gc.collect()
    losses, lrs = zip(*results)
    print("runs %d loss %.3f final lr %.4f" % (len(results), sum(losses) / len(losses), sum(lrs) / len(lrs)))


if __name__ == "__main__":
    main()
