# CARD: 8GiB
# KNOBS: SIZE=2000 ADAM HISTORY=100 POOL1_ONLY CHECKPOINT=ConvRelu AUTOCAST
# EXPERT: VGG19 activations of the full-size picture up to conv5_1 are kept for the gradient with respect to the pixels; smaller image (or tiles), fewer style layers; Adam instead of L-BFGS or a short history is not enough
# Source: neural style at 1000-2000 px on 11/12 GB cards, advice to use Adam instead of L-BFGS (jcjohnson/neural-style 6, 122, 457; titu1994/Neural-Style-Transfer 28)
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import vgg19

import knobs

device = torch.device("cuda")
imsize = int(os.environ.get("SIZE", 2000))
use_adam = os.environ.get("ADAM", "0") == "1"
history = int(os.environ.get("HISTORY", 100))
STYLE = ["conv1_1", "conv2_1", "conv3_1", "conv4_1", "conv5_1"]
CONTENT = ["conv4_2"]
if os.environ.get("POOL1_ONLY", "0") == "1":
    STYLE, CONTENT = ["conv1_1"], ["conv2_2"]


class ConvRelu(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x):
        return F.relu(self.conv(x))


def gram(x):
    b, c, h, w = x.shape
    f = x.view(b * c, h * w)
    return f @ f.t() / (b * c * h * w)


def named_layers(features):
    block, n = 1, 0
    for layer in features:
        if isinstance(layer, nn.Conv2d):
            n += 1
            yield f"conv{block}_{n}", ConvRelu(layer)
        elif isinstance(layer, nn.MaxPool2d):
            yield f"pool{block}", nn.AvgPool2d(2)
            block, n = block + 1, 0


class Extractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict()
        last = max(STYLE + CONTENT)
        for name, layer in named_layers(vgg19().features.requires_grad_(False)):
            self.layers[name] = layer
            if name == last:
                break
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(-1, 1, 1))

    def forward(self, img):
        x, out = (img - self.mean) / self.std, {}
        for name, layer in self.layers.items():
            x = layer(x)
            if name in STYLE or name in CONTENT:
                out[name] = x
        return out


cnn = knobs.apply(Extractor().to(device).eval())
content_img = torch.rand(1, 3, imsize, imsize * 4 // 3).to(device)
style_img = torch.rand(1, 3, imsize // 2, imsize // 2).to(device)

with torch.no_grad():
    style_targets = {k: gram(v) for k, v in cnn(style_img).items() if k in STYLE}
    content_targets = {k: v for k, v in cnn(content_img).items() if k in CONTENT}

input_img = content_img.clone().requires_grad_(True)
if use_adam:
    optimizer = torch.optim.Adam([input_img], lr=0.02)
else:
    optimizer = torch.optim.LBFGS([input_img], max_iter=20, history_size=history)

run = [0]
while run[0] < 3:

    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        with knobs.autocast():
            feats = cnn(input_img)
            style_score = sum(F.mse_loss(gram(feats[k]), t) for k, t in style_targets.items())
            content_score = sum(F.mse_loss(feats[k], t) for k, t in content_targets.items())
            loss = 1e6 * style_score + content_score
        loss.backward()
        run[0] += 1
        print(f"run {run[0]}: Style {style_score.item():4f} Content {content_score.item():4f}")
        return loss

    optimizer.step(closure)

print("PEAK", torch.cuda.max_memory_allocated())
