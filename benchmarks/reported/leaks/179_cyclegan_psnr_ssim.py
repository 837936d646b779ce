# kind: the PSNR/SSIM values are computed from the undetached fake_b and logged with their grad_fn, so each logged value keeps the saved tensors of its metric computation; after Lightning-AI/torchmetrics issue 2597
import itertools

import torch
import torch.nn as nn
from torchmetrics import MetricCollection
from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure


def generator():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.InstanceNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.InstanceNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 3, 3, padding=1), nn.Tanh(),
    )


def discriminator():
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(16, 1, 4, 2, 1),
    )


class CycleGAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.g_ab, self.g_ba = generator(), generator()
        self.d_a, self.d_b = discriminator(), discriminator()
        self.l1 = nn.L1Loss()
        self.mse = nn.MSELoss()
        self.train_metrics = MetricCollection({
            "PSNR": PeakSignalNoiseRatio(data_range=2.0),
            "SSIM": StructuralSimilarityIndexMeasure(data_range=2.0),
        })
        self.valid_metrics = self.train_metrics.clone(prefix="val_")
        self.logged_metrics = {}

    def log_dict(self, values):
        for name, value in values.items():
            self.logged_metrics.setdefault(name, []).append(value)  # LEAK

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(
            itertools.chain(self.g_ab.parameters(), self.g_ba.parameters()), lr=2e-4)
        opt_d = torch.optim.Adam(
            itertools.chain(self.d_a.parameters(), self.d_b.parameters()), lr=2e-4)
        return opt_g, opt_d

    def training_step(self, batch, opt_g, opt_d):
        real_a, real_b = batch
        fake_b = self.g_ab(real_a)
        fake_a = self.g_ba(real_b)
        rec_a = self.g_ba(fake_b)
        rec_b = self.g_ab(fake_a)
        pred_b, pred_a = self.d_b(fake_b), self.d_a(fake_a)
        loss_g = self.mse(pred_b, torch.ones_like(pred_b)) + self.mse(pred_a, torch.ones_like(pred_a))
        loss_g = loss_g + 10.0 * (self.l1(rec_a, real_a) + self.l1(rec_b, real_b))
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()

        pred_real, pred_fake = self.d_b(real_b), self.d_b(fake_b.detach())
        loss_d = self.mse(pred_real, torch.ones_like(pred_real)) + self.mse(pred_fake, torch.zeros_like(pred_fake))
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()

        train_metrics = self.train_metrics(fake_b, real_b)
        self.log_dict(train_metrics)
        self.log_dict({"loss_g": loss_g.detach(), "loss_d": loss_d.detach()})


def main():
    torch.manual_seed(0)
    model = CycleGAN().cuda()
    opt_g, opt_d = model.configure_optimizers()
    for epoch in range(4):
        for i in range(20):
            batch = (torch.rand(2, 3, 64, 64).cuda() * 2 - 1,
                     torch.rand(2, 3, 64, 64).cuda() * 2 - 1)
            model.training_step(batch, opt_g, opt_d)
        means = {k: torch.stack(v[-20:]).mean().item() for k, v in model.logged_metrics.items()}
        print("epoch", epoch, means)


if __name__ == "__main__":
    main()
