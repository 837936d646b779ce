# kind: a feature extractor is made for each image and its forward hooks stay on the shared encoder; from a bdpy (reconstruction) issue
import torch
import torchvision
from torch import nn


class FeatureExtractor:
    def __init__(self, encoder, layers):
        self._encoder = encoder
        self.features = {}
        modules = dict(encoder.named_modules())
        for name in layers:
            modules[name].register_forward_hook(self._make_hook(name))  # LEAK

    def _make_hook(self, name):
        def hook(module, inputs, output):
            self.features[name] = nn.functional.normalize(output.flatten(1), dim=1)  # ALSO
        return hook

    def run(self, x):
        self._encoder(x)
        return self.features


def reconstruct(encoder, target, steps=2):
    """Move an image until its features look like the target's."""
    layers = ["layer1", "layer2.0.conv1"]
    extractor = FeatureExtractor(encoder, layers)
    with torch.no_grad():
        wanted = {k: v.clone() for k, v in extractor.run(target).items()}
    image = torch.zeros_like(target, requires_grad=True)
    opt = torch.optim.SGD([image], lr=0.5)
    for _ in range(steps):
        opt.zero_grad()
        feats = extractor.run(image)
        loss = sum((feats[k] - wanted[k]).pow(2).sum() for k in layers)
        loss.backward()
        opt.step()
    return image.detach().clamp(-1, 1).cpu(), loss.item()


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    encoder = torchvision.models.resnet18(weights=None).to(device).eval()
    encoder.requires_grad_(False)
    gallery = []
    for i in range(60):
        target = torch.rand(3, 3, 96, 96).to(device) * 2 - 1
        image, loss = reconstruct(encoder, target)
        gallery.append(image.mean().item())
        if i % 15 == 0:
            print("image", i, "loss", round(loss, 3))
    print(len(gallery), "images reconstructed")


main()
