# CARD: 14.73GiB
# KNOBS: N_STEPS=200 INTERNAL_BATCH_SIZE=0 AUTOCAST CHECKPOINT=_DenseBlock DTYPE
# EXPERT: integrated gradients turns one X-ray into a batch of n_steps=200 interpolated ones that go through DenseNet-121 with their graph at once; internal_batch_size (a few at a time), fewer steps; it is one picture only, so the loader's batch size does not help
# after meta-pytorch/captum issue 538 (https://github.com/meta-pytorch/captum/issues/538)
import os

import numpy as np
import torch
import torch.nn as nn
import torchvision

import knobs

N_STEPS = int(os.environ.get("N_STEPS", 200))
INTERNAL_BATCH_SIZE = int(os.environ.get("INTERNAL_BATCH_SIZE", 0)) or None
CLASS_NAMES = ["Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax",
               "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia"]


class DenseNet121(nn.Module):
    def __init__(self, out_size):
        super().__init__()
        self.densenet121 = torchvision.models.densenet121(weights=None)
        num_ftrs = self.densenet121.classifier.in_features
        self.densenet121.classifier = nn.Sequential(nn.Linear(num_ftrs, out_size), nn.Sigmoid())

    def forward(self, x):
        return self.densenet121(x)


class IntegratedGradients:
    """captum's, for one input"""

    def __init__(self, forward_func):
        self.forward_func = forward_func

    def gradient_func(self, inputs, target):
        with torch.autograd.set_grad_enabled(True):
            with knobs.autocast():
                outputs = self.forward_func(inputs)
            outputs = outputs[:, target]
            return torch.autograd.grad(torch.unbind(outputs), inputs)[0]

    def _attribute(self, inputs, baselines, target, alphas, step_sizes):
        scaled_features = torch.cat([baselines + a * (inputs - baselines) for a in alphas], dim=0).requires_grad_()
        grads = self.gradient_func(scaled_features, target)
        scaled_grads = grads.contiguous().view(len(alphas), -1) * torch.tensor(step_sizes).float().view(-1, 1).to(grads)
        return scaled_grads.view((len(alphas),) + inputs.shape).sum(0) * (inputs - baselines)

    def attribute(self, inputs, target, n_steps=50, internal_batch_size=None):
        baselines = torch.zeros_like(inputs)
        x, w = np.polynomial.legendre.leggauss(n_steps)
        alphas, steps = list(0.5 * (1 + x)), list(0.5 * w)
        n = internal_batch_size or n_steps
        total = 0
        for i in range(0, n_steps, n):
            total = total + self._attribute(inputs, baselines, target, alphas[i:i + n], steps[i:i + n]).detach()
        return total


def main():
    model = DenseNet121(len(CLASS_NAMES)).cuda().eval()
    knobs.apply(model)
    ig = IntegratedGradients(model)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(3, 3, 224, 224)), batch_size=1)
    for i, (img,) in enumerate(loader):
        img = img.cuda().to(knobs.dtype())
        with torch.no_grad():
            pred = model(img)
        target = int(pred.float().cpu().argmax())
        attributions = ig.attribute(img, target=target, n_steps=N_STEPS, internal_batch_size=INTERNAL_BATCH_SIZE)
        heat = attributions.squeeze(0).permute(1, 2, 0).float().cpu().detach().numpy()
        print(i, CLASS_NAMES[target], heat.shape, float(heat.sum()))
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
