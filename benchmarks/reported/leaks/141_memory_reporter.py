# kind: a home-made memory reporter maps tensors to names in a dict keyed by the tensor, so whatever was ever reported stays alive; after Stonesjtu/pytorch_memlab issue 17
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)


class MemReporter:
    """Prints name, shape and bytes of the tensors it is shown."""

    def __init__(self, model):
        self.tensor_name = OrderedDict()
        for name, param in model.named_parameters():
            self.tensor_name[param] = name
        self.calls = 0

    def collect(self, **tensors):
        for name, tensor in tensors.items():
            if torch.is_tensor(tensor):
                self.tensor_name[tensor] = name  # LEAK

    def report(self, top=3):
        self.calls += 1
        recent = list(self.tensor_name.items())[-6:]
        recent.sort(key=lambda item: -item[0].numel() * item[0].element_size())
        for tensor, name in recent[:top]:
            size = tensor.numel() * tensor.element_size() / 2 ** 10
            print(f"  {name:12s} {str(tuple(tensor.shape)):20s} {size:8.0f} KiB")


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 2, 2, stride=2)

    def forward(self, x):
        h = F.relu(self.down(x))
        h = F.relu(self.body(h))
        return self.up(h)


def main():
    model = Segmenter().cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    reporter = MemReporter(model)
    gen = torch.Generator().manual_seed(8)
    for step in range(180):
        scans = torch.randn(4, 1, 128, 128, generator=gen).cuda()
        masks = (scans[:, 0] > 0.5).long()
        logits = model(scans)
        loss = F.cross_entropy(logits, masks)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        probs = logits.detach().softmax(1)
        reporter.collect(scans=scans, masks=masks, probs=probs, grad=model.body.weight.grad)  # ALSO
        if step % 45 == 44:
            print(f"step {step + 1} loss {loss.item():.3f}")
            reporter.report()


if __name__ == "__main__":
    main()
