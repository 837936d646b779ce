# CARD: 7977MiB
# KNOBS: BATCH=8 AUTOCAST CHECKPOINT=Bottleneck,CombinationModule CHECKPOINT_PATHS=base_network.layer1,base_network.layer3 OPT FUSED
# EXPERT: ResNet-101 with decoder at 608x608, 8 pictures a batch on an 8 GB card; smaller batch_size (then batch norm is noisy), AMP, smaller input
# after yijingru/BBAVectors-Oriented-Object-Detection issue 48
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet101

import knobs


class CombinationModule(nn.Module):
    def __init__(self, c_low, c_up):
        super().__init__()
        self.up = nn.Sequential(nn.Conv2d(c_low, c_up, 3, padding=1), nn.BatchNorm2d(c_up), nn.ReLU(inplace=True))
        self.cat_conv = nn.Sequential(nn.Conv2d(c_up * 2, c_up, 1), nn.BatchNorm2d(c_up), nn.ReLU(inplace=True))

    def forward(self, x_low, x_up):
        x_low = self.up(F.interpolate(x_low, x_up.shape[2:], mode="bilinear", align_corners=False))
        return self.cat_conv(torch.cat((x_up, x_low), 1))


class CTRBOX(nn.Module):
    def __init__(self, heads, head_conv=256):
        super().__init__()
        self.base_network = resnet101(weights=None)
        del self.base_network.fc
        self.dec_c2 = CombinationModule(512, 256)
        self.dec_c3 = CombinationModule(1024, 512)
        self.dec_c4 = CombinationModule(2048, 1024)
        self.heads = heads
        for head, classes in heads.items():
            k = 3 if head == "wh" else 1
            fc = nn.Sequential(nn.Conv2d(256, head_conv, 3, padding=1), nn.BatchNorm2d(head_conv),
                               nn.ReLU(inplace=True), nn.Conv2d(head_conv, classes, k, padding=k // 2))
            if head == "hm":
                fc[-1].bias.data.fill_(-2.19)
            self.__setattr__(head, fc)

    def features(self, x):
        net = self.base_network
        x = net.maxpool(net.relu(net.bn1(net.conv1(x))))
        feats = []
        for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
            x = layer(x)
            feats.append(x)
        return feats

    def forward(self, x):
        x = self.features(x)
        c4 = self.dec_c4(x[-1], x[-2])
        c3 = self.dec_c3(c4, x[-3])
        c2 = self.dec_c2(c3, x[-4])
        out = {}
        for head in self.heads:
            out[head] = self.__getattr__(head)(c2)
            if head in ("hm", "cls_theta"):
                out[head] = torch.sigmoid(out[head].float())
        return out


class DOTA(Dataset):
    def __init__(self, h, w, num_classes, max_objs=500, down_ratio=4, n=64):
        self.h, self.w, self.nc, self.max_objs, self.down, self.n = h, w, num_classes, max_objs, down_ratio, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        h, w = self.h // self.down, self.w // self.down
        k = 5 + 13 * i % 120
        ind = torch.zeros(self.max_objs, dtype=torch.long)
        ind[:k] = torch.randint(0, h * w, (k,))
        mask = torch.zeros(self.max_objs)
        mask[:k] = 1
        hm = torch.zeros(self.nc, h, w)
        hm.view(self.nc, -1)[torch.randint(0, self.nc, (k,)), ind[:k]] = 1
        return {"input": torch.randn(3, self.h, self.w), "hm": hm, "reg_mask": mask, "ind": ind,
                "wh": torch.rand(self.max_objs, 10), "reg": torch.rand(self.max_objs, 2),
                "cls_theta": torch.randint(0, 2, (self.max_objs, 1)).float()}


def gather(feat, ind):
    feat = feat.permute(0, 2, 3, 1).contiguous().view(feat.size(0), -1, feat.size(1))
    return feat.gather(1, ind[:, :, None].expand(-1, -1, feat.size(2)))


class LossAll(nn.Module):
    def focal(self, pred, gt):
        pos, neg = gt.eq(1).float(), gt.lt(1).float()
        pred = pred.clamp(1e-4, 1 - 1e-4)
        pos_loss = (torch.log(pred) * torch.pow(1 - pred, 2) * pos).sum()
        neg_loss = (torch.log(1 - pred) * torch.pow(pred, 2) * torch.pow(1 - gt, 4) * neg).sum()
        return -(pos_loss + neg_loss) / pos.sum().clamp(min=1)

    def off(self, out, b, key):
        m = b["reg_mask"][:, :, None]
        return F.smooth_l1_loss(gather(out, b["ind"]).float() * m, b[key] * m, reduction="sum") / (m.sum() + 1e-4)

    def bce(self, out, b, key):
        m = b["reg_mask"][:, :, None]
        return F.binary_cross_entropy(gather(out, b["ind"]) * m, b[key] * m)

    def forward(self, pr, gt):
        return (self.focal(pr["hm"], gt["hm"]) + self.off(pr["wh"], gt, "wh") + self.off(pr["reg"], gt, "reg")
                + self.bce(pr["cls_theta"], gt, "cls_theta"))


class TrainModule:
    def __init__(self, model):
        self.device = torch.device("cuda:0")
        self.model = model.to(self.device)
        knobs.apply(self.model)

    def train_network(self, args):
        self.optimizer = torch.optim.Adam(self.model.parameters(), args.init_lr)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.96)
        loader = DataLoader(DOTA(args.input_h, args.input_w, 15), batch_size=args.batch_size, shuffle=True, drop_last=True)
        criterion = LossAll()
        for epoch in range(args.num_epoch):
            self.model.train()
            running = 0.0
            for step, batch in enumerate(loader):
                batch = {k: v.to(self.device, non_blocking=True) for k, v in batch.items()}
                self.optimizer.zero_grad()
                with knobs.autocast():
                    pr = self.model(batch["input"])
                loss = criterion(pr, batch)
                loss.backward()
                self.optimizer.step()
                running += loss.item()
                if step == 2:
                    break
            scheduler.step()
            print(f"Epoch: {epoch} train loss: {running / (step + 1):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="BBAVectors Implementation")
    parser.add_argument("--num_epoch", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=int(os.environ.get("BATCH", 8)))
    parser.add_argument("--init_lr", type=float, default=1.25e-4)
    parser.add_argument("--input_h", type=int, default=608)
    parser.add_argument("--input_w", type=int, default=608)
    args = parser.parse_args()
    model = CTRBOX({"hm": 15, "wh": 10, "reg": 2, "cls_theta": 1})
    TrainModule(model).train_network(args)
    print("PEAK", torch.cuda.max_memory_allocated())
