# kind: a new Grad-CAM object per frame registers hooks on the shared model that are never removed, each keeps its activations; from utkuozbulak/pytorch-cnn-visualizations issue 53
import torch
import torch.nn as nn
import torch.nn.functional as F


class SmallVGG(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        layers, c = [], 3
        for width in (8, 16, 32):
            layers += [nn.Conv2d(c, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            c = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(32 * 4 * 4, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class CamExtractor:
    def __init__(self, model, target_layer):
        self.model = model
        self.conv_output = None
        self.gradients = None
        layer = self.model.features[target_layer]
        layer.register_forward_hook(self.save_output)  # LEAK
        layer.register_full_backward_hook(self.save_gradient)  # ALSO

    def save_output(self, module, args, output):
        if self.conv_output is None:
            self.conv_output = output.detach()  # ALSO

    def save_gradient(self, module, grad_input, grad_output):
        if self.gradients is None:
            self.gradients = grad_output[0]

    def forward_pass(self, x):
        return self.model(x)


class GradCam:
    def __init__(self, model, target_layer):
        self.model = model
        self.extractor = CamExtractor(model, target_layer)

    def generate_cam(self, input_image, target_class=None):
        output = self.extractor.forward_pass(input_image)
        if target_class is None:
            target_class = output.argmax(1)
        one_hot = F.one_hot(target_class, output.size(1)).float()
        self.model.zero_grad()
        output.backward(gradient=one_hot)
        weights = self.extractor.gradients.mean((2, 3), keepdim=True)
        cam = F.relu((weights * self.extractor.conv_output).sum(1))
        cam = (cam - cam.amin()) / (cam.amax() - cam.amin() + 1e-6)
        return cam[0].cpu().numpy()


def read_video(num_frames):
    gen = torch.Generator().manual_seed(7)
    frame = torch.rand(2, 3, 32, 32, generator=gen)
    for _ in range(num_frames):
        frame = (frame + 0.05 * torch.randn(frame.shape, generator=gen)).clamp(0, 1)
        yield frame


def main():
    torch.manual_seed(0)
    model = SmallVGG().cuda().eval()
    saliency = []
    for i, frame in enumerate(read_video(120)):
        grad_cam = GradCam(model, target_layer=3)  # ALSO
        cam = grad_cam.generate_cam(frame.cuda())
        saliency.append(cam.mean())
    print("frames", len(saliency), "mean saliency", sum(saliency) / len(saliency))


if __name__ == "__main__":
    main()
