# kind: tensor hook fills the list of a CAM helper that reset() forgets; from Grad-CAM issues
import torch
import torch.nn as nn
import torch.nn.functional as F


class SmallNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.block = nn.Conv2d(16, 64, 3, padding=1)
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(self.block(x))
        return self.head(x.mean(dim=(2, 3)))


class GradCAM:
    def __init__(self, model, layer):
        self.model = model
        self.activations = []
        self.gradients = []
        layer.register_forward_hook(self.save_activation)

    def save_activation(self, module, inputs, output):
        self.activations.append(output.detach())
        output.register_hook(self.save_gradient)

    def save_gradient(self, grad):
        # gradients arrive in reverse order
        self.gradients.insert(0, grad)  # LEAK

    def reset(self):
        self.activations = []

    def __call__(self, images, target=None):
        self.reset()
        self.model.zero_grad()
        logits = self.model(images)
        if target is None:
            target = logits.argmax(dim=1)
        score = logits.gather(1, target[:, None]).sum()
        score.backward()
        weights = self.gradients[0].mean(dim=(2, 3), keepdim=True)
        cam = F.relu((weights * self.activations[-1]).sum(dim=1))
        cam = cam / (cam.amax(dim=(1, 2), keepdim=True) + 1e-6)
        return cam.cpu().numpy()


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = SmallNet().to(device).eval()
    cam = GradCAM(net, net.block)
    total = 0.0
    for i in range(120):
        images = torch.rand(4, 3, 64, 64, device=device)
        heatmap = cam(images)
        total += float(heatmap.mean())
        if i % 20 == 0:
            print(f"image {i}: mean heat {total / (i + 1):.4f}")
