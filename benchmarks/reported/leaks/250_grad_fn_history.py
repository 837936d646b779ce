# kind: a memory profiler with global module hooks notes the grad_fn of each output to print its name later, the generator's pass of a discriminator step (its images are detached) is never gone back through, so that its graph keeps all that it saved; after chainer/chainer PR 4300 (CupyMemoryProfileHook keeps function nodes in its call history)
"""GAN for textures, profiled while it trains.

https://github.com/chainer/chainer/pull/4300 (avoid keeping reference to function nodes in CupyMemoryProfileHook)
"""
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class MemoryProfile:
    """with MemoryProfile() as profile: ...; profile.report() tells which operations allocate most."""

    def __init__(self):
        self.call_history = []
        self._before = []

    def __enter__(self):
        self.handles = [register_module_forward_pre_hook(self._pre), register_module_forward_hook(self._post)]
        return self

    def __exit__(self, *exc):
        for handle in self.handles:
            handle.remove()

    def _pre(self, module, args):
        self._before.append(torch.cuda.memory_allocated())

    def _post(self, module, args, output):
        used = torch.cuda.memory_allocated() - self._before.pop()
        if not list(module.children()):
            self.call_history.append((output.grad_fn, type(module).__name__, used))  # LEAK

    def report(self, n=5):
        table = defaultdict(lambda: [0, 0])
        for node, module, used in self.call_history:
            row = table[module, node.name() if node is not None else "-"]
            row[0] += 1
            row[1] += used
        for (module, node), (calls, used) in sorted(table.items(), key=lambda r: -r[1][1])[:n]:
            print(f"  {module:18} {node:26} {calls:5} calls {used / 2**20:8.1f} MiB")


def generator(latent=64, width=24):
    return nn.Sequential(
        nn.ConvTranspose2d(latent, 4 * width, 4), nn.BatchNorm2d(4 * width), nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


def discriminator(width=24):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4 * width, 1, 4), nn.Flatten(0))


class GAN:
    def __init__(self, latent=64, lr=2e-4):
        self.latent = latent
        self.G, self.D = generator(latent).to("cuda"), discriminator().to("cuda")
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=lr, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=lr, betas=(0.5, 0.999))

    def noise(self, n):
        return torch.randn(n, self.latent, 1, 1, device="cuda")

    def discriminator_step(self, real):
        fake = self.G(self.noise(len(real))).detach()  # ALSO
        loss = F.softplus(-self.D(real)).mean() + F.softplus(self.D(fake)).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def generator_step(self, n):
        loss = F.softplus(-self.D(self.G(self.noise(n)))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        return loss.item()


def textures(n, size=32):
    waves = torch.linspace(0, 12.0, size)
    phase, angle = torch.rand(n, 1, 1) * 6.3, torch.rand(n, 1, 1) * 3.1
    image = torch.sin(waves[:, None] * torch.cos(angle) + waves * torch.sin(angle) + phase)
    return image[:, None].repeat(1, 3, 1, 1)


def main(steps=160, batch=6):
    torch.manual_seed(0)
    gan = GAN()
    with MemoryProfile() as profile:
        for i in range(steps):
            d = gan.discriminator_step(textures(batch).to("cuda"))
            g = gan.generator_step(batch)
            if i % 40 == 0:
                print(f"step {i}: discriminator {d:.3f}, generator {g:.3f}, {len(profile.call_history)} calls")
    profile.report()


if __name__ == "__main__":
    main()
