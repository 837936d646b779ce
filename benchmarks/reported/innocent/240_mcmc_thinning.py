# kind: samples of a Bayesian network's weights are kept on the GPU every few steps of Langevin dynamics, when there are thirty every second one is thrown out and the stride is doubled, so their number goes up and down between fifteen and thirty ever more slowly; after tensorflow/probability issues 436 and 799 (MCMC samples fill up GPU memory)
"""Posterior of a small network for wave heights, SGLD by hand.

https://github.com/tensorflow/probability/issues/436 (mcmc samples fill up memory),
https://github.com/tensorflow/probability/issues/799
"""
import argparse
import math

import torch
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class ThinnedChain:
    """An even subset of the chain so far, however long it gets."""

    def __init__(self, capacity, stride):
        assert capacity % 2 == 0
        self.capacity, self.stride = capacity, stride
        self.samples = []

    def offer(self, step, draw):
        if step % self.stride:
            return False
        self.samples.append((step, draw()))
        if len(self.samples) == self.capacity:
            self.samples = self.samples[1::2]
            self.stride *= 2
        return True

    def vectors(self):
        return [v for _, v in self.samples]


class SGLD:
    def __init__(self, model, n_data, lr, prior_scale=1.0):
        self.model, self.n_data, self.lr = model, n_data, lr
        self.precision = 1 / prior_scale**2

    def step(self, negative_log_likelihood):
        for p in self.model.parameters():
            p.grad = None
        negative_log_likelihood.mul(self.n_data).backward()
        with torch.no_grad():
            for p in self.model.parameters():
                gradient = p.grad + self.precision * p
                p.sub_(0.5 * self.lr * gradient).add_(torch.randn_like(p), alpha=math.sqrt(self.lr))


def network(features=48, hidden=224):
    return nn.Sequential(
        nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def gaussian_nll(out, y):
    mean, log_scale = out.unbind(-1)
    return (log_scale + 0.5 * ((y - mean) / log_scale.exp()).square()).mean()


class Buoys:
    def __init__(self, n=4096, features=48, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, features, generator=g)
        self.y = torch.sin(self.x[:, 0]) + 0.5 * self.x[:, 1] * self.x[:, 2] + 0.1 * torch.randn(n, generator=g)

    def batch(self, size):
        rows = torch.randint(0, len(self.x), (size,))
        return self.x[rows].cuda(), self.y[rows].cuda()


@torch.no_grad()
def predictive(model, chain, x):
    current = parameters_to_vector(model.parameters()).clone()
    means = []
    for vector in chain.vectors():
        vector_to_parameters(vector, model.parameters())
        means.append(model(x)[:, 0])
    vector_to_parameters(current, model.parameters())
    means = torch.stack(means)
    return means.mean(0), means.std(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--burn-in", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    data, model = Buoys(), network().cuda()
    sampler, chain = SGLD(model, len(data.x), lr=2e-6), ThinnedChain(capacity=30, stride=2)
    for i in range(args.steps):
        x, y = data.batch(256)
        loss = gaussian_nll(model(x), y)
        sampler.step(loss)
        if i >= args.burn_in:
            chain.offer(i - args.burn_in, lambda: parameters_to_vector(model.parameters()).detach().clone())
        if i % 20 == 19 and chain.samples:
            mean, spread = predictive(model, chain, x)
            print(f"step {i}: nll {loss.item():.3f}, {len(chain.samples)} samples at stride {chain.stride}, "
                  f"spread {spread.mean().item():.4f}")


if __name__ == "__main__":
    main()
