# kind: video stabilisation with a learned homography, the camera path accumulated with its graph; in the manner of a forum post "GPU memory increases with every frame, model in eval()"
import torch
import torch.nn as nn
import torch.nn.functional as F


class MotionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 12, 5, 2, 2), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(),
                                      nn.AdaptiveAvgPool2d(4))
        self.regress = nn.Linear(24 * 16, 6)

    def forward(self, prev, cur):
        p = self.regress(self.features(torch.cat([prev, cur], 1)).flatten(1)).view(-1, 2, 3) * 0.01
        eye = torch.eye(2, 3, device=p.device)
        bottom = torch.tensor([[[0.0, 0.0, 1.0]]], device=p.device).expand(p.shape[0], 1, 3)
        return torch.cat([p + eye, bottom], 1)


class Stabilizer:
    def __init__(self, net, smooth=0.9):
        self.net = net.eval()
        self.smooth = smooth
        self.prev = None
        self.path = torch.eye(3, device="cuda")[None]
        self.smoothed = torch.eye(3, device="cuda")[None]

    def feed(self, frame):
        if self.prev is None:
            self.prev = frame
            return frame
        motion = self.net(self.prev, frame)
        self.path = self.path @ motion  # LEAK
        self.smoothed = self.smooth * self.smoothed + (1 - self.smooth) * self.path  # ALSO
        correction = torch.linalg.solve(self.path.detach(), self.smoothed.detach())[:, :2]
        grid = F.affine_grid(correction, frame.shape, align_corners=False)
        self.prev = frame
        return F.grid_sample(frame, grid, align_corners=False)


class Camera:
    def __init__(self, frames, size=96):
        self.frames, self.size = frames, size

    def __iter__(self):
        base = torch.rand(1, 1, self.size, self.size, device="cuda")
        for i in range(self.frames):
            yield torch.roll(base, (i % 5 - 2, i % 3 - 1), (2, 3))


torch.manual_seed(0)
stab = Stabilizer(MotionNet().cuda())
energy = 0.0
for frame in Camera(160):
    energy += stab.feed(frame).mean().item()
print("mean brightness", energy / 160)
