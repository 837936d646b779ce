# kind: warnings of a whole inference run are recorded with catch_warnings(record=True) for the summary, the warning objects carry the activations that they complain about; after python/cpython issue 97557, POSYDON-code/POSYDON issue 364 and forum questions on checking activations for saturation
import warnings
from collections import Counter
from contextlib import contextmanager

import timm
import torch


class ActivationWarning(UserWarning):
    """Something is odd about the output of a layer."""

    def __init__(self, layer, reason, output):
        super().__init__(f"{layer}: {reason}")
        self.layer, self.reason, self.output = layer, reason, output

    def share(self, limit):
        return (self.output.abs() > limit).float().mean().item()


class Guard:
    """Watches a model's norm layers while it is in evaluation mode."""

    def __init__(self, model, limit=2.5, share=0.001):
        self.limit, self.allowed = limit, share
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.register_forward_hook(self._hook_for(name))

    def _hook_for(self, name):
        def hook(module, args, output):
            self.check(name, output)
        return hook

    def check(self, name, output):
        if not torch.isfinite(output).all():
            warnings.warn(ActivationWarning(name, "not finite", output))
        elif (output.abs() > self.limit).float().mean() > self.allowed:
            warnings.warn(ActivationWarning(name, "saturated", output))  # LEAK


@contextmanager
def summarised(limit):
    with warnings.catch_warnings(record=True) as caught:  # ALSO
        warnings.simplefilter("always", ActivationWarning)
        yield
    odd = [w.message for w in caught if issubclass(w.category, ActivationWarning)]
    for (layer, reason), n in Counter((m.layer, m.reason) for m in odd).most_common(5):
        worst = max(m.share(limit) for m in odd if m.layer == layer)
        print(f"  {layer} was {reason} {n} times, {100 * worst:.2f} % in the worst case")


def slides(n, batch, size):
    g = torch.Generator().manual_seed(9)
    for i in range(n):
        stain = torch.rand(batch, 3, 1, 1, generator=g)
        yield stain + (0.2 + 0.01 * i) * torch.randn(batch, 3, size, size, generator=g)


@torch.inference_mode()
def run(n=60):
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=4, img_size=96).cuda().eval()
    guard = Guard(model)
    votes = torch.zeros(4)
    with summarised(guard.limit):
        for i, batch in enumerate(slides(n, 12, 96)):
            votes += model(batch.cuda()).softmax(-1).sum(0).cpu()
            if i % 15 == 0:
                print(f"slide batch {i}: {(votes / votes.sum()).numpy().round(2)}")


if __name__ == "__main__":
    run()
