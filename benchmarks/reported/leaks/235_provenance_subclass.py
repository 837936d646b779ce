# kind: a tensor subclass notes in __torch_function__ which tensors every result was made of, the running background of a camera is made of its former value, so that the provenance goes back to the first frame; from Project-MONAI/MONAI issue 6626 (MetaTensor transforms on the GPU, applied_operations) and forum posts on subclassing torch.Tensor for metadata
import torch
import torch.nn.functional as F


class Provenance:
    """How a tensor came about: a name and what it was computed from."""

    __slots__ = ("name", "inputs")

    def __init__(self, name, inputs=()):
        self.name = name
        self.inputs = inputs

    def describe(self, depth=3):
        if depth == 0 or not self.inputs:
            return self.name
        return f"{self.name}({', '.join(i.provenance.describe(depth - 1) for i in self.inputs)})"


def flatten(args):
    for a in args:
        if isinstance(a, (tuple, list)):
            yield from flatten(a)
        elif isinstance(a, TracedImage):
            yield a


class TracedImage(torch.Tensor):
    quiet = {"__get__", "size", "dim", "__len__", "item", "numel"}

    @classmethod
    def load(cls, data, name):
        image = data.as_subclass(cls)
        image.provenance = Provenance(name)
        return image

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, cls) and func.__name__ not in cls.quiet:
            out.provenance = Provenance(func.__name__, tuple(flatten(args)))  # LEAK
        return out


class BackgroundModel:
    """Exponentially forgetting background with a blob detector on the difference."""

    def __init__(self, rate=0.08, threshold=0.35):
        self.rate, self.threshold = rate, threshold
        self.background = None

    def __call__(self, frame):
        if self.background is None:
            self.background = frame
        difference = (frame - self.background).abs().amax(1, keepdim=True)
        mask = F.avg_pool2d(difference, 5, stride=1, padding=2) > self.threshold
        self.background = torch.lerp(self.background, frame, self.rate)  # ALSO
        return mask


class Camera:
    def __init__(self, height=144, width=208, seed=1):
        self.g = torch.Generator().manual_seed(seed)
        self.scene = torch.rand(1, 3, height, width, generator=self.g)

    def frames(self, n):
        for t in range(n):
            image = self.scene + 0.02 * torch.randn(self.scene.shape, generator=self.g)
            left = 4 * t % (self.scene.shape[-1] - 20)
            image[..., 60:90, left:left + 20] = 1.0
            yield TracedImage.load(image.to("cuda"), f"frame{t}")


@torch.no_grad()
def watch(camera, model, n):
    for t, frame in enumerate(camera.frames(n)):
        mask = model(frame)
        if t % 20 == 0:
            share = mask.as_subclass(torch.Tensor).float().mean().item()
            print(f"{t}: {100 * share:.1f} % moves, {mask.provenance.describe()}")


if __name__ == "__main__":
    torch.manual_seed(0)
    watch(Camera(), BackgroundModel(), 80)
