# kind: a metaclass gives back the same instance for the same constructor arguments, its table keeps every instance and the arguments differ from request to request; after pyccel/pyccel PR 1760
import math

import torch
from torch import nn

torch.manual_seed(6)


class ArgumentSingleton(type):
    """One instance per class and set of arguments."""

    _instances = {}

    def __call__(cls, *args, **kwargs):
        key = (cls, args, tuple(sorted(kwargs.items())))
        if key not in ArgumentSingleton._instances:
            instance = super().__call__(*args, **kwargs)
            ArgumentSingleton._instances[key] = instance  # LEAK
        return ArgumentSingleton._instances[key]


class NoiseSchedule(metaclass=ArgumentSingleton):
    def __init__(self, steps, shift):
        t = torch.linspace(0, 1, steps, device="cuda")
        sigma = shift * t / (1 + (shift - 1) * t)
        self.alpha = torch.cos(sigma * math.pi / 2)
        self.sigma = torch.sin(sigma * math.pi / 2)


class GuidanceField(metaclass=ArgumentSingleton):
    """Radial weight for region guidance, centred where the user clicked."""

    def __init__(self, size, cx, cy, radius):
        axis = torch.linspace(0, 1, size, device="cuda")
        dist = (axis[None, :] - cx) ** 2 + (axis[:, None] - cy) ** 2
        self.weight = torch.exp(-dist / (2 * radius ** 2)).expand(3, -1, -1).contiguous()


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv2d(3, 6, 3, stride=4, padding=1)
        self.out = nn.ConvTranspose2d(6, 3, 4, stride=4)

    def forward(self, x, sigma):
        return self.out(torch.tanh(self.inp(x) * (1 + sigma)))


@torch.no_grad()
def inpaint(model, image, click, radius, steps=3):
    schedule = NoiseSchedule(steps, shift=3.0)
    field = GuidanceField(image.shape[-1], click[0], click[1], radius=radius)  # ALSO
    x = torch.randn_like(image)
    for i in reversed(range(steps)):
        eps = model(x, schedule.sigma[i])
        x = schedule.alpha[i] * x - schedule.sigma[i] * eps * field.weight
    return image * (1 - field.weight) + x * field.weight


def main():
    model = Denoiser().cuda().eval()
    gen = torch.Generator().manual_seed(9)
    image = torch.rand(1, 3, 320, 320, generator=gen).cuda()
    brightness = 0.0
    for request in range(220):
        click = [round(v, 3) for v in torch.rand(2, generator=gen).tolist()]
        radius = [0.05, 0.1, 0.2][request % 3]
        result = inpaint(model, image, click, radius)
        brightness += result.mean().item()
        if request % 55 == 54:
            print(f"request {request + 1}: mean brightness {brightness / (request + 1):.4f}")


if __name__ == "__main__":
    main()
