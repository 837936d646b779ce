# kind: images of the fixed noise kept for an animation with the generator's graph, every 10th step; from copies of the DCGAN tutorial
import torch
import torch.nn as nn

nz, ngf, ndf, bs = 32, 16, 8, 8
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(999)

netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
    nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False), nn.Tanh(),
).to(device)
netD = nn.Sequential(
    nn.Conv2d(3, ndf, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf, ndf * 2, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
    nn.Flatten(), nn.Linear(ndf * 2 * 16, 1),
).to(device)

criterion = nn.BCEWithLogitsLoss()
optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
fixed_noise = torch.randn(64, nz, 1, 1, device=device)
ones, zeros = torch.ones(bs, 1, device=device), torch.zeros(bs, 1, device=device)

G_losses, D_losses, img_list = [], [], []
iters = 0
for epoch in range(5):
    for i in range(30):
        # (1) update D
        real = torch.rand(bs, 3, 16, 16, device=device) * 2 - 1
        netD.zero_grad()
        errD = criterion(netD(real), ones)
        fake = netG(torch.randn(bs, nz, 1, 1, device=device))
        errD = errD + criterion(netD(fake.detach()), zeros)
        errD.backward()
        optD.step()
        # (2) update G
        netG.zero_grad()
        errG = criterion(netD(fake), ones)
        errG.backward()
        optG.step()

        G_losses.append(errG.item())
        D_losses.append(errD.item())
        # check how the generator is doing
        if iters % 10 == 0:
            fake = netG(fixed_noise)  # ALSO
            img_list.append(fake)  # LEAK
        iters += 1
    print(f"[{epoch}/5] Loss_D {D_losses[-1]:.4f} Loss_G {G_losses[-1]:.4f}")

frames = [((im + 1) / 2).clamp(0, 1).mean().item() for im in img_list]
print("frames for the animation:", len(frames))
