# CARD: 15114MiB
# KNOBS: BATCH=10 AUTOCAST CHECKPOINT=DOWN,inconv OPT FUSED
# EXPERT: 60 images of 256x256 per step (two loaders x three domains) through 128/196/128 channels at full resolution, conv and batch norm outputs kept; smaller batchsize, AMP, checkpoint the first DOWN block
# after rshaojimmy/MADDoG issue 11
import argparse
import itertools
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset

import knobs


def conv3x3(i, o):
    return nn.Conv2d(i, o, 3, stride=1, padding=1, bias=False)


def cbr(i, o):
    return [conv3x3(i, o), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]


class inconv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv = nn.Sequential(*cbr(i, o))

    def forward(self, x):
        return self.conv(x)


class DOWN(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.mpconv = nn.Sequential(*cbr(i, 128), *cbr(128, 196), *cbr(196, o), nn.MaxPool2d(2))

    def forward(self, x):
        return self.mpconv(x)


class FeatExtractor(nn.Module):
    def __init__(self, in_channels=6):
        super().__init__()
        self.inc = inconv(in_channels, 64)
        self.down1, self.down2, self.down3 = DOWN(64, 128), DOWN(128, 128), DOWN(128, 128)

    def forward(self, x):
        dx1 = self.inc(x)
        dx2 = self.down1(dx1)
        dx3 = self.down2(dx2)
        dx4 = self.down3(dx3)
        cat = torch.cat([F.adaptive_avg_pool2d(dx2, 32), F.adaptive_avg_pool2d(dx3, 32), dx4], 1)
        return cat, dx4


class DepthEstmator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(*cbr(384, 128), *cbr(128, 64), *cbr(64, 1))

    def forward(self, x):
        return self.conv(x)


class FeatEmbedder(nn.Module):
    def __init__(self, embed_size=128):
        super().__init__()
        self.conv = nn.Sequential(*cbr(128, 128), nn.MaxPool2d(2), *cbr(128, 256), nn.MaxPool2d(2), *cbr(256, 512))
        self.classifier = nn.Sequential(nn.Linear(512, embed_size), nn.BatchNorm1d(embed_size), nn.ReLU(),
                                        nn.Linear(embed_size, 1))

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.conv(x), 1).flatten(1)
        return F.normalize(x, dim=1), self.classifier(x)


class Discriminator(nn.Module):
    def __init__(self, nc=128, ndf=128):
        super().__init__()
        layers = []
        for i, o in ((nc, ndf), (ndf, 2 * ndf), (2 * ndf, 4 * ndf)):
            layers += [nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, inplace=True)]
        self.model = nn.Sequential(*layers, nn.Conv2d(4 * ndf, 1, 4, bias=False))

    def forward(self, x):
        return self.model(x)


class Faces(Dataset):
    """RGB + HSV of aligned faces, depth map 32 x 32, live or spoof"""

    def __init__(self, real, n=64):
        self.real, self.n = real, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        depth = torch.rand(1, 32, 32) if self.real else torch.zeros(1, 32, 32)
        return torch.rand(6, 256, 256), depth, torch.tensor(int(self.real))


def gan_loss(pred, real):
    return F.mse_loss(pred, torch.ones_like(pred) if real else torch.zeros_like(pred))


def triplet_loss(feat, label, margin):
    dist = (2 - 2 * feat @ feat.t()).clamp(min=1e-12).sqrt()
    same = label[:, None] == label[None]
    hardest_pos = (dist * same).amax(1)
    hardest_neg = (dist + 10 * same).amin(1)
    return F.relu(hardest_pos - hardest_neg + margin).mean()


def train(args):
    ext, depth, embd = FeatExtractor().cuda(), DepthEstmator().cuda(), FeatEmbedder().cuda()
    critics = [Discriminator().cuda() for _ in range(3)]
    pretrained = [FeatExtractor().cuda().eval() for _ in range(3)]
    for m in (ext, depth, embd):
        knobs.apply(m)

    opt_depth = optim.Adam(itertools.chain(ext.parameters(), depth.parameters()), lr=args.lr_DG_depth)
    opt_conf = optim.Adam(itertools.chain(ext.parameters(), embd.parameters()), lr=args.lr_DG_conf)
    opt_critic = [optim.Adam(c.parameters(), lr=args.lr_critic) for c in critics]

    loaders = [[iter(DataLoader(Faces(real), batch_size=args.batchsize, shuffle=True)) for real in (True, False)]
               for _ in range(3)]
    for step in range(args.steps):
        imgs, depths, labels = [], [], []
        for domain in loaders:
            parts = [next(it) for it in domain]
            imgs.append(torch.cat([p[0] for p in parts]).cuda())
            depths.append(torch.cat([p[1] for p in parts]))
            labels.append(torch.cat([p[2] for p in parts]))
        ori_img = torch.cat(imgs)
        depth_gt = torch.cat(depths).cuda()
        label = torch.cat(labels).cuda()

        with torch.no_grad(), knobs.autocast():
            pre = [m(x)[1] for m, x in zip(pretrained, imgs)]

        # depth supervision
        opt_depth.zero_grad()
        with knobs.autocast():
            feat_all, _ = ext(ori_img)
            loss_depth = F.mse_loss(depth(feat_all).float(), depth_gt)
        loss_depth.backward()
        opt_depth.step()

        # domain generalization
        opt_conf.zero_grad()
        with knobs.autocast():
            _, feat = ext(ori_img)
            loss_gen = sum(gan_loss(c(feat), True) for c in critics) / 3
            emb, pred = embd(feat)
        emb = emb.float()
        n = 2 * args.batchsize
        loss_trip = triplet_loss(emb, label, 0.5) + 0.1 * sum(
            triplet_loss(emb[i * n:(i + 1) * n], label[i * n:(i + 1) * n], 0.1) for i in range(3))
        loss_cls = F.binary_cross_entropy_with_logits(pred.squeeze().float(), label.float())
        loss_g = loss_trip + loss_cls + loss_gen
        loss_g.backward()
        opt_conf.step()

        for critic, opt, p in zip(critics, opt_critic, pre):
            opt.zero_grad()
            with knobs.autocast():
                loss_c = 0.5 * (gan_loss(critic(torch.cat([p, p, p])), True) + gan_loss(critic(feat.detach()), False))
            loss_c.backward()
            opt.step()
        print(f"[{step}] depth {loss_depth.item():.4f} G {loss_g.item():.4f} critic {loss_c.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="MADDoG")
    parser.add_argument("--lr_DG_depth", type=float, default=1e-4)
    parser.add_argument("--lr_DG_conf", type=float, default=1e-5)
    parser.add_argument("--lr_critic", type=float, default=1e-5)
    parser.add_argument("--batchsize", type=int, default=int(os.environ.get("BATCH", 10)))
    parser.add_argument("--steps", type=int, default=2)
    train(parser.parse_args())
    print("PEAK", torch.cuda.max_memory_allocated())
