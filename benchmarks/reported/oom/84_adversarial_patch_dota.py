# CARD: 19864MiB
# KNOBS: MAX_LAB=240 IMG_SIZE=1024 PATCH=300 AUTOCAST CHECKPOINT=PatchTransformer
# EXPERT: the patch is padded to the whole 1024x1024 picture once per label: 240 x 3 x 1024 x 1024 (2.8 GiB) for patch, mask, sampled patch, sampled mask, ...; the batch is 1 already; limit max_lab, paste patches one by one or checkpoint the transformer, smaller pictures
# after JiaweiLian/AP-PA issue 3 (RTX 3090 with 19.4 GiB left to the process; the 2.81 GiB that it asked for are 240 labels)
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset

import knobs


class DotaTiles(Dataset):
    def __init__(self, max_lab, imgsize, n=4):
        self.max_n_labels, self.imgsize, self.n = max_lab, imgsize, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        n = min([35, 240, 12, 90][i % 4], self.max_n_labels)
        label = torch.cat([torch.zeros(n, 1), torch.rand(n, 2), 0.02 + 0.05 * torch.rand(n, 2)], 1)
        label = F.pad(label, (0, 0, 0, self.max_n_labels - n), value=1)
        return torch.rand(3, self.imgsize, self.imgsize), label


class YoloV2(nn.Module):
    """Darknet-19 with the detection head of YOLOv2, 15 classes"""

    def __init__(self, num_classes=15, num_anchors=5):
        super().__init__()

        def c(i, o, k):
            return nn.Sequential(nn.Conv2d(i, o, k, padding=k // 2, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.1, True))

        cfg = [32, "M", 64, "M", 128, (64, 1), 128, "M", 256, (128, 1), 256, "M",
               512, (256, 1), 512, (256, 1), 512, "M", 1024, (512, 1), 1024, (512, 1), 1024, 1024, 1024]
        layers, i = [], 3
        for v in cfg:
            if v == "M":
                layers.append(nn.MaxPool2d(2))
                continue
            o, k = v if isinstance(v, tuple) else (v, 3)
            layers.append(c(i, o, k))
            i = o
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(i, num_anchors * (5 + num_classes), 1)

    def forward(self, x):
        return self.head(self.body(x))


class MaxProbExtractor(nn.Module):
    def __init__(self, cls_id=0, num_cls=15):
        super().__init__()
        self.cls_id, self.num_cls = cls_id, num_cls

    def forward(self, out):
        b, _, h, w = out.shape
        out = out.view(b, 5, 5 + self.num_cls, h * w).transpose(1, 2).contiguous().view(b, 5 + self.num_cls, -1)
        obj = torch.sigmoid(out[:, 4])
        cls = torch.softmax(out[:, 5:], dim=1)[:, self.cls_id]
        return (obj * cls).max(dim=1)[0]


class TotalVariation(nn.Module):
    def forward(self, p):
        tv1 = torch.abs(p[:, :, 1:] - p[:, :, :-1] + 1e-6).sum()
        tv2 = torch.abs(p[:, 1:, :] - p[:, :-1, :] + 1e-6).sum()
        return (tv1 + tv2) / p.numel()


class PatchTransformer(nn.Module):
    """contrast, brightness, noise; rotates and resizes the patch for each label, pads it to the picture"""

    def __init__(self):
        super().__init__()
        self.minangle, self.maxangle = -20 / 180 * math.pi, 20 / 180 * math.pi
        self.noise_factor = 0.10

    def forward(self, adv_patch, lab_batch, img_size):
        pad = (img_size - adv_patch.size(-1)) / 2
        n = lab_batch.size(0) * lab_batch.size(1)
        adv_batch = adv_patch[None, None].expand(lab_batch.size(0), lab_batch.size(1), -1, -1, -1)
        per = (lab_batch.size(0), lab_batch.size(1), 1, 1, 1)
        contrast = torch.empty(per, device="cuda").uniform_(0.8, 1.2).expand(adv_batch.size())
        brightness = torch.empty(per, device="cuda").uniform_(-0.1, 0.1).expand(adv_batch.size())
        noise = torch.empty(adv_batch.size(), device="cuda").uniform_(-1, 1) * self.noise_factor
        adv_batch = torch.clamp(adv_batch * contrast + brightness + noise, 0.000001, 0.99999)

        cls_mask = lab_batch[:, :, :1, None, None].expand(-1, -1, 3, adv_batch.size(3), adv_batch.size(4))
        msk_batch = torch.ones(cls_mask.size(), device="cuda") - cls_mask

        mypad = nn.ConstantPad2d((int(pad + 0.5), int(pad), int(pad + 0.5), int(pad)), 0)
        adv_batch = mypad(adv_batch)
        msk_batch = mypad(msk_batch)

        angle = torch.empty(n, device="cuda").uniform_(self.minangle, self.maxangle)
        wh = lab_batch[:, :, 3:5] * img_size
        target_size = torch.sqrt((wh[..., 0] * 0.2) ** 2 + (wh[..., 1] * 0.2) ** 2) / 2
        scale = (target_size / adv_patch.size(-1)).view(n)
        s = adv_batch.size()
        adv_batch = adv_batch.view(n, s[2], s[3], s[4])
        msk_batch = msk_batch.view(n, s[2], s[3], s[4])
        tx = (-lab_batch[:, :, 1].reshape(n) + 0.5) * 2
        ty = (-lab_batch[:, :, 2].reshape(n) + 0.5) * 2
        sin, cos = torch.sin(angle), torch.cos(angle)

        theta = torch.zeros(n, 2, 3, device="cuda")
        theta[:, 0, 0] = cos / scale
        theta[:, 0, 1] = sin / scale
        theta[:, 0, 2] = tx * cos / scale + ty * sin / scale
        theta[:, 1, 0] = -sin / scale
        theta[:, 1, 1] = cos / scale
        theta[:, 1, 2] = -tx * sin / scale + ty * cos / scale

        grid = F.affine_grid(theta, adv_batch.shape, align_corners=False)
        adv_batch_t = F.grid_sample(adv_batch, grid, align_corners=False)
        msk_batch_t = F.grid_sample(msk_batch, grid, align_corners=False)
        adv_batch_t = adv_batch_t.view(s)
        msk_batch_t = msk_batch_t.view(s)
        adv_batch_t = torch.clamp(adv_batch_t, 0.000001, 0.999999)
        return adv_batch_t * msk_batch_t


class PatchApplier(nn.Module):
    def forward(self, img_batch, adv_batch):
        for adv in torch.unbind(adv_batch, 1):
            img_batch = torch.where(adv == 0, img_batch, adv)
        return img_batch


class PatchTrainer:
    def __init__(self):
        self.img_size = int(os.environ.get("IMG_SIZE", 1024))
        self.max_lab = int(os.environ.get("MAX_LAB", 240))  # lines of the longest label file
        self.patch_size = int(os.environ.get("PATCH", 300))
        self.model = YoloV2().eval().cuda()
        self.prob_extractor = MaxProbExtractor().cuda()
        self.patch_applier = PatchApplier().cuda()
        self.patch_transformer = PatchTransformer().cuda()
        self.total_variation = TotalVariation().cuda()
        knobs.apply(self.patch_transformer)

    def train(self):
        adv_patch_cpu = torch.full((3, self.patch_size, self.patch_size), 0.5)
        adv_patch_cpu.requires_grad_(True)
        loader = DataLoader(DotaTiles(self.max_lab, self.img_size), batch_size=1, shuffle=False)
        optimizer = optim.Adam([adv_patch_cpu], lr=0.03, amsgrad=True)
        for i_batch, (img_batch, lab_batch) in enumerate(loader):
            img_batch, lab_batch = img_batch.cuda(), lab_batch.cuda()
            adv_patch = adv_patch_cpu.cuda()
            with knobs.autocast():
                adv_batch_t = self.patch_transformer(adv_patch, lab_batch, self.img_size)
                p_img_batch = self.patch_applier(img_batch, adv_batch_t)
                p_img_batch = F.interpolate(p_img_batch, (self.img_size, self.img_size))
                output = self.model(p_img_batch)
            det_loss = torch.mean(self.prob_extractor(output.float()))
            tv_loss = self.total_variation(adv_patch) * 2.5
            loss = det_loss + torch.max(tv_loss, torch.tensor(0.1).cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            adv_patch_cpu.data.clamp_(0, 1)
            print(f"batch {i_batch} det {det_loss.item():.4f} tv {tv_loss.item():.4f}")
            del adv_batch_t, output, det_loss, p_img_batch, tv_loss, loss
            torch.cuda.empty_cache()
            if i_batch == 1:
                break


if __name__ == "__main__":
    trainer = PatchTrainer()
    trainer.train()
    print("PEAK", torch.cuda.max_memory_allocated())
