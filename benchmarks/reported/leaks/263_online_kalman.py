# kind: the tracker detaches the filter's mean but not its covariance, whose update runs through learnable noise, so the covariance chain grows with each frame; own, in the manner of "partially detached state" reports for differentiable filters
import torch
import torch.nn as nn


class NeuralKalman(nn.Module):
    """Constant-velocity Kalman filter, its noise predicted from appearance."""

    def __init__(self, dt=1.0, feat=32):
        super().__init__()
        eye = torch.eye(4)
        F = torch.cat([torch.cat([eye, dt * eye], 1), torch.cat([torch.zeros(4, 4), eye], 1)], 0)
        self.register_buffer("F", F)
        self.register_buffer("H", torch.eye(8)[:4])
        self.log_q = nn.Parameter(torch.full((8,), -3.0))
        self.r_net = nn.Sequential(nn.Linear(feat, 32), nn.Tanh(), nn.Linear(32, 4))

    def predict(self, x, P):
        Q = torch.diag(self.log_q.exp())
        return x @ self.F.t(), self.F @ P @ self.F.t() + Q

    def update(self, x, P, z, feat):
        R = torch.diag_embed(self.r_net(feat).exp())
        S = self.H @ P @ self.H.t() + R
        # solve with the pseudo inverse of a diagonal, boxes are almost independent
        K = P @ self.H.t() / torch.diagonal(S, dim1=1, dim2=2).unsqueeze(1).clamp(min=1e-4)
        innovation = z - x @ self.H.t()
        x = x + (K @ innovation.unsqueeze(-1)).squeeze(-1)
        P = P - K @ self.H @ P
        return x, P


class CrowdTracker:
    def __init__(self, kf, n_tracks, device):
        self.kf = kf
        self.x = torch.zeros(n_tracks, 8, device=device)
        self.P = torch.eye(8, device=device).expand(n_tracks, 8, 8).contiguous()
        self.ages = torch.zeros(n_tracks, dtype=torch.long)

    def step(self, detections, feats):
        x, P = self.kf.predict(self.x, self.P)
        x, P = self.kf.update(x, P, detections, feats)
        self.x = x.detach()
        self.P = P  # LEAK
        self.ages += 1
        return self.x[:, :4]


def simulate_detections(n_tracks, frames, device):
    pos = torch.rand(n_tracks, 4, device=device)
    vel = 0.01 * torch.randn(n_tracks, 4, device=device)
    for _ in range(frames):
        pos = pos + vel
        noisy = pos + 0.005 * torch.randn_like(pos)
        yield noisy, torch.randn(n_tracks, 32, device=device)


def run(frames=150, n_tracks=160):
    device = torch.device("cuda")
    torch.manual_seed(0)
    kf = NeuralKalman().to(device).eval()
    tracker = CrowdTracker(kf, n_tracks, device)
    log = []
    for i, (dets, feats) in enumerate(simulate_detections(n_tracks, frames, device)):
        boxes = tracker.step(dets, feats)  # ALSO
        log.append((boxes - dets).abs().mean().item())
        if (i + 1) % 50 == 0:
            print(f"frame {i + 1}: residual {sum(log[-50:]) / 50:.5f}")
    return log


if __name__ == "__main__":
    run()
