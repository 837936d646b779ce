# kind: an fx Interpreter with garbage_collect_values=False keeps the value of every node in its env for the report, the next run begins with a new env, images of the calibration get larger during the first half; after pytorch/pytorch issue 52022 (FX Interpreter doesn't GC values)
"""Ranges of all intermediate results of a network, for quantization.

https://github.com/pytorch/pytorch/issues/52022
"""
import logging

import torch
import torch.fx
import torchvision

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("calibrate")


class Range:
    """Running minimum and maximum with a decay."""

    def __init__(self, decay=0.95):
        self.decay, self.low, self.high = decay, None, None

    def update(self, value):
        low, high = torch.aminmax(value)
        if self.low is None:
            self.low, self.high = low.clone(), high.clone()
        else:
            self.low.lerp_(low, 1 - self.decay)
            self.high.lerp_(high, 1 - self.decay)

    def scale(self):
        return max(abs(self.low.item()), abs(self.high.item())) / 127


class Calibrator(torch.fx.Interpreter):
    def __init__(self, module):
        super().__init__(module, garbage_collect_values=False)
        self.ranges = {}

    def run_node(self, node):
        value = super().run_node(node)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            self.ranges.setdefault(node.name, Range()).update(value)
        return value

    def heaviest(self, n=3):
        """The nodes with the largest values of the run before."""
        sizes = {node.name: v.numel() for node, v in self.env.items() if isinstance(v, torch.Tensor)}
        return sorted(sizes, key=sizes.get, reverse=True)[:n]


def resolutions(batches, first=32, last=128, step=8):
    """From small to large within the first half, then at the largest."""
    stairs = list(range(first, last + 1, step))
    for i in range(batches):
        yield stairs[min(len(stairs) - 1, i * 2 * len(stairs) // batches)]


class Images:
    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)

    def __call__(self, n, size):
        coarse = torch.rand(n, 3, 8, 8, generator=self.g)
        image = torch.nn.functional.interpolate(coarse, size=size, mode="bilinear")
        return (image + 0.05 * torch.randn(image.shape, generator=self.g)).clamp(0, 1)


@torch.no_grad()
def calibrate(calibrator, batches, batch=2):
    images = Images()
    for i, size in enumerate(resolutions(batches)):
        out = calibrator.run(images(batch, size).to("cuda"))
        if i % 20 == 0:
            log.info("batch %d at %d px: classes %s, heaviest %s", i, size, out.argmax(1).tolist(), calibrator.heaviest())


def main(batches=120):
    torch.manual_seed(0)
    model = torchvision.models.mobilenet_v3_small(weights=None).to("cuda").eval()
    calibrator = Calibrator(torch.fx.symbolic_trace(model))
    calibrate(calibrator, batches)
    scales = {name: r.scale() for name, r in calibrator.ranges.items()}
    log.info("%d scales, largest %.4f", len(scales), max(scales.values()))


if __name__ == "__main__":
    main()
