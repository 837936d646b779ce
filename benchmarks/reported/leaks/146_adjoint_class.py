# kind: the adjoint property defines a class inside of the operator that closes over it, and a cached helper is keyed by the class, so each patient's operator stays; after odlgroup/odl PR 1632
import functools
import inspect

import torch

torch.manual_seed(10)


@functools.lru_cache(maxsize=None)
def call_signature(cls):
    """Names of the arguments of an operator's _call and whether it takes `out`."""
    names = tuple(inspect.signature(cls._call).parameters)[1:]
    return names, "out" in names


class Operator:
    def __call__(self, x):
        names, has_out = call_signature(type(self))  # LEAK
        if has_out:
            return self._call(x, out=None)
        return self._call(x)


class RayTransform(Operator):
    """Toy fan-beam projector with a dense system matrix for one patient's geometry."""

    def __init__(self, pixels, rays, seed):
        gen = torch.Generator().manual_seed(seed)
        matrix = torch.rand(rays, pixels, generator=gen)
        self.matrix = (matrix * (matrix > 0.9)).cuda()
        self.scale = float(self.matrix.sum(0).mean())

    def _call(self, x):
        return self.matrix @ x

    @property
    def adjoint(self):
        op = self

        class RayBackProjection(Operator):  # ALSO
            def _call(self, y, out=None):
                result = op.matrix.T @ y
                return result if out is None else out.copy_(result)

        return RayBackProjection()


def landweber(op, sinogram, pixels, steps):
    x = torch.zeros(pixels, device="cuda")
    back = op.adjoint
    norm = op.scale * 30
    for _ in range(steps):
        x = x + back(sinogram - op(x)) / norm
        x.clamp_(min=0)
    return x


def main():
    pixels, rays = 1024, 300
    errors = []
    for patient in range(240):
        op = RayTransform(pixels, rays, seed=patient)
        truth = torch.rand(pixels).cuda()
        sinogram = op(truth)
        sinogram = sinogram + 0.01 * torch.randn_like(sinogram)
        recon = landweber(op, sinogram, pixels, steps=40)
        errors.append(((recon - truth).norm() / truth.norm()).item())
        if patient % 30 == 29:
            print(f"patient {patient + 1}: mean relative error {sum(errors) / len(errors):.4f}")


if __name__ == "__main__":
    main()
