# CARD: 16GiB
# KNOBS: SIZE=1600 DTYPE
# EXPERT: the coarse matching compares every 1/8 cell of one picture with every one of the other: (200*200)^2 floats are 6 GiB, and the dual softmax makes several of them; smaller pictures (quadratic in pixels), tiles, half precision
# after zju3dv/LoFTR issue 102 (https://github.com/zju3dv/LoFTR/issues/102; there 2000x2000 took 80 GB)
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

SIZE = int(os.environ.get("SIZE", 1600))


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(o), nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None if stride == 1 else nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            x = self.downsample(x)
        return self.relu(x + y)


class ResNetFPN_8_2(nn.Module):
    def __init__(self, dims=(128, 196, 256)):
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(1, 128, 7, 2, 3, bias=False), nn.BatchNorm2d(128), nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(BasicBlock(128, 128), BasicBlock(128, 128))
        self.layer2 = nn.Sequential(BasicBlock(128, 196, 2), BasicBlock(196, 196))
        self.layer3 = nn.Sequential(BasicBlock(196, 256, 2), BasicBlock(256, 256))
        self.layer3_outconv = nn.Conv2d(256, 256, 1, bias=False)
        self.layer2_outconv, self.layer1_outconv = nn.Conv2d(196, 256, 1, bias=False), nn.Conv2d(128, 196, 1, bias=False)

        def out(i, o):
            return nn.Sequential(nn.Conv2d(i, i, 3, 1, 1, bias=False), nn.BatchNorm2d(i), nn.LeakyReLU(),
                                 nn.Conv2d(i, o, 3, 1, 1, bias=False))
        self.layer2_outconv2, self.layer1_outconv2 = out(256, 196), out(196, 128)

    def forward(self, x):
        x0 = self.relu(self.bn1(self.conv1(x)))
        x1 = self.layer1(x0)
        x2 = self.layer2(x1)
        x3 = self.layer3(x2)
        x3_out = self.layer3_outconv(x3)
        up = F.interpolate(x3_out, scale_factor=2., mode="bilinear", align_corners=True)
        x2_out = self.layer2_outconv2(self.layer2_outconv(x2) + up)
        up = F.interpolate(x2_out, scale_factor=2., mode="bilinear", align_corners=True)
        return x3_out, self.layer1_outconv2(self.layer1_outconv(x1) + up)


class LoFTREncoderLayer(nn.Module):
    def __init__(self, d=256, nhead=8):
        super().__init__()
        self.nhead, self.dim = nhead, d // nhead
        self.q, self.k, self.v, self.merge = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(d * 2, d * 2, bias=False), nn.ReLU(True), nn.Linear(d * 2, d, bias=False))
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, source):
        b = x.size(0)
        q = F.elu(self.q(x).view(b, -1, self.nhead, self.dim)) + 1
        k = F.elu(self.k(source).view(b, -1, self.nhead, self.dim)) + 1
        v = self.v(source).view(b, -1, self.nhead, self.dim)
        kv = torch.einsum("nshd,nshv->nhdv", k, v / v.size(1))
        z = 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + 1e-6)
        m = torch.einsum("nlhd,nhdv,nlh->nlhv", q, kv, z) * v.size(1)
        m = self.norm1(self.merge(m.reshape(b, -1, self.nhead * self.dim)))
        m = self.norm2(self.mlp(torch.cat([x, m], dim=2)))
        return x + m


class CoarseMatching(nn.Module):
    def __init__(self, thr=0.2, border_rm=2, temperature=0.1):
        super().__init__()
        self.thr, self.border_rm, self.temperature = thr, border_rm, temperature

    def forward(self, f0, f1, hw):
        f0, f1 = (f / f.shape[-1] ** .5 for f in (f0, f1))
        sim_matrix = torch.einsum("nlc,nsc->nls", f0, f1) / self.temperature
        conf_matrix = F.softmax(sim_matrix, 1) * F.softmax(sim_matrix, 2)
        mask = conf_matrix > self.thr
        n, (h, w) = mask.shape[0], hw
        mask = mask.view(n, h, w, h, w)
        b = self.border_rm
        for d in range(1, 5):
            mask.narrow(d, 0, b).fill_(False)
            mask.narrow(d, mask.shape[d] - b, b).fill_(False)
        mask = mask.view(n, h * w, h * w)
        mask = mask * (conf_matrix == conf_matrix.max(dim=2, keepdim=True)[0]) \
            * (conf_matrix == conf_matrix.max(dim=1, keepdim=True)[0])
        mask_v, all_j_ids = mask.max(dim=2)
        b_ids, i_ids = torch.where(mask_v)
        return dict(conf_matrix=conf_matrix, b_ids=b_ids, i_ids=i_ids, all_j_ids=all_j_ids)


class LoFTR(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = ResNetFPN_8_2()
        self.loftr_coarse = nn.ModuleList([LoFTREncoderLayer() for _ in range(8)])
        self.coarse_matching = CoarseMatching()

    def forward(self, data):
        c, f = self.backbone(torch.cat([data["image0"], data["image1"]], dim=0))
        hw = c.shape[2:]
        f0, f1 = c.flatten(2).transpose(1, 2).chunk(2)
        for i, layer in enumerate(self.loftr_coarse):
            if i % 2 == 0:
                f0, f1 = layer(f0, f0), layer(f1, f1)
            else:
                f0 = layer(f0, f1)
                f1 = layer(f1, f0)
        data.update(self.coarse_matching(f0, f1, hw))
        return data


def main():
    matcher = LoFTR().eval().cuda()
    knobs.apply(matcher)
    for pair in range(2):
        img0, img1 = torch.rand(2, 1, 1, SIZE, SIZE, device="cuda").to(knobs.dtype())
        batch = {"image0": img0, "image1": img1}
        with torch.no_grad():
            matcher(batch)
        print("pair", pair, "matches", tuple(batch["i_ids"].shape), tuple(batch["conf_matrix"].shape))
        del batch
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
