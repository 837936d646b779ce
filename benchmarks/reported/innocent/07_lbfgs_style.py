# kind: L-BFGS history of directions and steps grows up to history_size; from neural style transfer threads
import torch
import torch.nn as nn
import torch.nn.functional as F


def gram(f):
    b, c, h, w = f.shape
    f = f.reshape(b, c, h * w)
    return f @ f.transpose(1, 2) / (c * h * w)


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)])
        for p in self.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        out = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            out.append(x)
        return out


def run_style_transfer(cnn, content, style, steps=120, style_weight=1e4):
    with torch.no_grad():
        target_content = cnn(content)[-1]
        target_grams = [gram(f) for f in cnn(style)]
    image = content.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([image], lr=0.5, max_iter=1, history_size=20)
    losses = []

    for i in range(steps):
        def closure():
            optimizer.zero_grad()
            feats = cnn(image)
            c = F.mse_loss(feats[-1], target_content)
            s = sum(F.mse_loss(gram(f), g) for f, g in zip(feats, target_grams))
            loss = c + style_weight * s
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        losses.append(float(loss))
        with torch.no_grad():
            image.clamp_(-1, 2)
        if i % 30 == 0:
            print(f"run {i}: loss {losses[-1]:.5f}")
    return image.detach()


def main():
    torch.manual_seed(2)
    device = torch.device("cuda")
    cnn = Features().to(device).eval()
    content = torch.rand(1, 3, 160, 160, device=device)
    style = torch.rand(1, 3, 160, 160, device=device) ** 3
    out = run_style_transfer(cnn, content, style)
    print("result", out.mean().item())


if __name__ == "__main__":
    main()
