# CARD: 11GiB
# KNOBS: BATCH=32 GRAD_CHUNK=0 PROJECT DTYPE
# EXPERT: vmap(grad) runs ResNet-101 for 32 pictures at once with its activations (about 7 GiB) and makes 32 gradients of 42.5 million weights (5.1 GiB), and torch.cat of the flattened gradients holds them twice; enough: BATCH=16, PROJECT (four examples at a time, sketched before the next), DTYPE=bf16; GRAD_CHUNK=8 (chunk_size of vmap) saves activations only, 10.4 GiB remain (borderline on 11 GiB)
# after pytorch/functorch pull request 774 (https://github.com/pytorch/functorch/pull/774: vmap over grad of a ResNet-101 with 32 pictures fails on an 11 GB card and passes with 4 chunks) and issue 982 (joining the gradients doubles them)
import os

import torch
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet101

import knobs

BATCH = int(os.environ.get("BATCH", 32))
GRAD_CHUNK = int(os.environ.get("GRAD_CHUNK", 0)) or None
PROJECT = os.environ.get("PROJECT") == "1"
PROJ_DIM = 512


class Pictures(Dataset):
    def __len__(self):
        return 2 * BATCH

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.rand(3, 244, 244, generator=g).to(knobs.dtype()), i % 10


class GradientFeatures:
    """The gradient of every single example, as features for data attribution."""

    def __init__(self, model):
        self.model = model
        self.params = {k: v.detach() for k, v in model.named_parameters()}
        self.buffers = dict(model.named_buffers())
        gradient = grad_and_value(self.compute_loss)
        self.per_sample = vmap(gradient, in_dims=(None, None, 0, 0), chunk_size=GRAD_CHUNK)

    def compute_loss(self, params, buffers, x, y):
        out = functional_call(self.model, (params, buffers), (x.unsqueeze(0),))
        return F.cross_entropy(out, y.unsqueeze(0))

    def norms(self, grads):
        return torch.stack([g.flatten(1).float().norm(dim=1) for g in grads.values()]).norm(dim=0)

    def features(self, x, y):
        """Returns the per-sample losses, gradient norms and the sketched gradients."""
        if PROJECT:  # a few examples at a time, reduced before the next ones
            parts = [self._sketch(x[i:i + 4], y[i:i + 4]) for i in range(0, len(x), 4)]
            return tuple(torch.cat(p) for p in zip(*parts))
        return self._sketch(x, y)

    def _sketch(self, x, y):
        grads, losses = self.per_sample(self.params, self.buffers, x, y)
        norms = self.norms(grads)
        flat = torch.cat([g.flatten(1) for g in grads.values()], dim=1)
        columns = flat.shape[1] // PROJ_DIM * PROJ_DIM
        sketch = flat[:, :columns].view(len(x), PROJ_DIM, -1).sum(-1)
        return losses, norms, sketch


def build_model():
    model = resnet101(num_classes=10)
    model.eval()
    return knobs.apply(model.cuda())


def main():
    torch.manual_seed(0)
    extractor = GradientFeatures(build_model())
    kept = []
    for step, (x, y) in enumerate(DataLoader(Pictures(), batch_size=BATCH)):
        losses, norms, sketch = extractor.features(x.cuda(), y.cuda())
        kept.append(sketch.cpu())
        print(f"step {step}: loss {losses.mean().item():.3f}, gradient norm {norms.mean().item():.3f}")
    print("features", tuple(torch.cat(kept).shape))


if __name__ == "__main__":
    main()
