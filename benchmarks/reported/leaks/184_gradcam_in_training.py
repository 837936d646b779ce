# kind: every call makes a new CAM whose hooks are never removed; the hooks of all the old ones append the activations and gradients of every later pass; after jacobgil/pytorch-grad-cam issue 117
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class ActivationsAndGradients:
    """ Class for extracting activations and registering gradients from the target layer """

    def __init__(self, model, target_layer):
        self.model = model
        self.gradients = []
        self.activations = []
        target_layer.register_forward_hook(self.save_activation)  # LEAK
        target_layer.register_full_backward_hook(self.save_gradient)  # ALSO

    def save_activation(self, module, input, output):
        self.activations.append(output.detach())  # ALSO

    def save_gradient(self, module, grad_input, grad_output):
        # Gradients are computed in reverse order
        self.gradients = [grad_output[0].detach()] + self.gradients  # ALSO

    def __call__(self, x):
        self.gradients = []
        self.activations = []
        return self.model(x)


class GradCAMPlusPlus:
    def __init__(self, model, target_layer):
        self.model = model.eval()
        self.target_layer = target_layer
        self.activations_and_grads = ActivationsAndGradients(model, target_layer)

    def get_cam_weights(self, grads, activations):
        grads2 = grads ** 2
        grads3 = grads2 * grads
        sum_act = activations.sum(dim=(2, 3), keepdim=True)
        aij = grads2 / (2 * grads2 + sum_act * grads3 + 1e-6)
        return (F.relu(grads) * aij).sum(dim=(2, 3), keepdim=True)

    def __call__(self, input_tensor, target_category):
        output = self.activations_and_grads(input_tensor)
        self.model.zero_grad()
        output[:, target_category].sum().backward()
        activations = self.activations_and_grads.activations[-1]
        grads = self.activations_and_grads.gradients[-1]
        cam = (self.get_cam_weights(grads, activations) * activations).sum(dim=1)
        return F.relu(cam).cpu().numpy()


class SegNet(nn.Module):
    def __init__(self, n_out=8):
        super().__init__()
        self.c1 = nn.Conv2d(3, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 32, 3, padding=1)
        self.lastact = nn.ModuleList([nn.Conv2d(32, 32, 3, padding=1)])
        self.fc = nn.Linear(32, n_out)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        x = self.lastact[-1](x)
        return self.fc(F.relu(x).mean(dim=(2, 3)))


def cam_extractor(network, input_tensor):
    target_layer = network.lastact[-1]
    cam = GradCAMPlusPlus(model=network, target_layer=target_layer)  # ALSO
    grayscale_cam = cam(input_tensor=input_tensor, target_category=3)
    network.train()
    return np.uint8(255 * np.nan_to_num(grayscale_cam[0]).clip(0, 1))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    network = SegNet().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for epoch in range(6):
        for it in range(12):
            x = torch.randn(8, 3, 32, 32).to(device)
            y = torch.randint(0, 8, (8,)).to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(network(x), y)
            loss.backward()
            optimizer.step()
            image = cam_extractor(network, x[:2])
        print(epoch, loss.item(), image.shape)


if __name__ == "__main__":
    main()
