# kind: jacobgil/pytorch-grad-cam style server ("GPU memory grows with each request"): one CAM object per request, hooks on the shared model
import torch
import torch.nn.functional as F
import torchvision

model = torchvision.models.resnet18(weights=None).cuda().eval()


class ActivationsAndGradients:
    def __init__(self, model, layer):
        self.model, self.layer = model, layer
        self.activations, self.gradients = [], []
        layer.register_forward_hook(self.save_activation)  # LEAK

    def save_activation(self, module, inp, out):
        self.activations.append(out.detach())
        out.register_hook(self.save_gradient)

    def save_gradient(self, grad):
        self.gradients = [grad.detach()] + self.gradients


class GradCAM:
    def __init__(self, model, target_layer):
        self.model = model
        self.extractor = ActivationsAndGradients(model, target_layer)

    def __call__(self, image, category=None):
        self.extractor.activations, self.extractor.gradients = [], []
        logits = self.model(image)
        if category is None:
            category = 3
        score = logits[:, category].sum()
        self.model.zero_grad()
        score.backward()
        a, g = self.extractor.activations[-1], self.extractor.gradients[-1]
        weights = g.mean(dim=(2, 3), keepdim=True)
        cam = F.relu((weights * a).sum(1, keepdim=True))
        return F.interpolate(cam, image.shape[-2:], mode="bilinear")


def handle_request(image):
    cam = GradCAM(model, model.layer3[-1])
    heat = cam(image)
    return heat[0, 0].cpu().numpy()


for request in range(60):
    picture = torch.rand(1, 3, 224, 224).cuda()
    mask = handle_request(picture)
print("served 60 requests", torch.cuda.memory_allocated() >> 20, "MiB")
