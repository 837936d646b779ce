# CARD: 9GiB
# KNOBS: DEL_OUTPUTS COUNT_ONE VAL_SIZE=320 SW_BATCH=2 BATCH=2 AUTOCAST CHECKPOINT=ConvBlock
# EXPERT: training on 96^3 patches fits (about 3 GiB) and so does the first validation volume; 14 classes at 320^3 are 1.7 GiB a tensor, and while the second volume is put together (sum, count map, quotient) the logits, one-hot prediction and one-hot label of the first are still held by the loop's names; del them (or a function per volume), a count map with one channel and dividing in place, sum on the CPU, smaller volumes; SW_BATCH, BATCH, autocast and checkpointing do not matter
# after Project-MONAI/research-contributions issue 22 (https://github.com/Project-MONAI/research-contributions/issues/22), count_map = torch.zeros fails in the middle of the validation on 11.9 GiB
import itertools
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

CLASSES, ROI = 14, 96
BATCH = int(os.environ.get("BATCH", 2))
SW_BATCH = int(os.environ.get("SW_BATCH", 2))
VAL_SIZE = int(os.environ.get("VAL_SIZE", 320))
DEL_OUTPUTS = os.environ.get("DEL_OUTPUTS") == "1"
COUNT_ONE = os.environ.get("COUNT_ONE") == "1"


class ConvBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv3d(cin, cout, 3, padding=1), nn.InstanceNorm3d(cout)
        self.conv2, self.norm2 = nn.Conv3d(cout, cout, 3, padding=1), nn.InstanceNorm3d(cout)

    def forward(self, x):
        x = F.leaky_relu(self.norm1(self.conv1(x)), 0.01)
        return F.leaky_relu(self.norm2(self.conv2(x)), 0.01)


class UNet(nn.Module):
    def __init__(self, widths=(16, 32, 64, 128)):
        super().__init__()
        self.down = nn.ModuleList()
        cin = 1
        for w in widths:
            self.down.append(ConvBlock(cin, w))
            cin = w
        self.up = nn.ModuleList()
        self.dec = nn.ModuleList()
        for w in reversed(widths[:-1]):
            self.up.append(nn.ConvTranspose3d(cin, w, 2, 2))
            self.dec.append(ConvBlock(2 * w, w))
            cin = w
        self.out = nn.Conv3d(cin, CLASSES, 1)

    def forward(self, x):
        skips = []
        for k, block in enumerate(self.down):
            x = block(F.max_pool3d(x, 2) if k else x)
            skips.append(x)
        skips.pop()
        for up, dec in zip(self.up, self.dec):
            x = dec(torch.cat([up(x), skips.pop()], dim=1))
        return self.out(x)


def scan_starts(size, roi, overlap):
    step = int(roi * (1 - overlap))
    starts = list(range(0, max(size - roi, 0) + 1, step))
    if starts[-1] + roi < size:
        starts.append(size - roi)
    return starts


def sliding_window_inference(inputs, roi, sw_batch, predictor, overlap=0.25):
    size = inputs.shape[2:]
    windows = list(itertools.product(*(scan_starts(s, roi, overlap) for s in size)))
    output_image = torch.zeros((1, CLASSES) + tuple(size), device=inputs.device)
    count_map = torch.zeros((1, 1 if COUNT_ONE else CLASSES) + tuple(size), device=inputs.device)
    for k in range(0, len(windows), sw_batch):
        group = windows[k:k + sw_batch]
        data = torch.cat([inputs[:, :, a:a + roi, b:b + roi, c:c + roi] for a, b, c in group])
        seg = predictor(data)
        for s, (a, b, c) in zip(seg, group):
            output_image[0, :, a:a + roi, b:b + roi, c:c + roi] += s
            count_map[0, :, a:a + roi, b:b + roi, c:c + roi] += 1
    if COUNT_ONE:
        return output_image.div_(count_map)
    return output_image / count_map


class AsDiscrete:
    def __init__(self, argmax=False):
        self.argmax = argmax

    def __call__(self, x):
        index = x.argmax(0, keepdim=True) if self.argmax else x.long()
        return torch.zeros((CLASSES,) + tuple(x.shape[1:]), device=x.device).scatter_(0, index, 1.0)


def dice(pred, label):
    inter = (pred * label).sum((1, 2, 3))
    return (2 * inter / (pred.sum((1, 2, 3)) + label.sum((1, 2, 3)) + 1e-5)).mean()


def train_epoch(model, optimizer, steps=2):
    model.train()
    for it in range(steps):
        x = torch.randn(BATCH, 1, ROI, ROI, ROI).cuda()
        y = torch.randint(0, CLASSES, (BATCH, ROI, ROI, ROI), dtype=torch.uint8).cuda().long()
        with knobs.autocast():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"train {it} loss {loss.item():.4f}")


@torch.no_grad()
def val_epoch(model, volumes=3):
    model.eval()
    post_pred, post_label, scores = AsDiscrete(argmax=True), AsDiscrete(), []
    for idx in range(volumes):
        image = torch.randn(1, 1, VAL_SIZE, VAL_SIZE, VAL_SIZE).cuda()
        label = torch.randint(0, CLASSES, (1, VAL_SIZE, VAL_SIZE, VAL_SIZE), dtype=torch.uint8).cuda()
        with knobs.autocast():
            logits = sliding_window_inference(image, ROI, SW_BATCH, model)
        pred_onehot = [post_pred(v) for v in logits]
        label_onehot = [post_label(v) for v in label.unsqueeze(1)]
        scores.append(dice(pred_onehot[0], label_onehot[0]).item())
        print(f"Val {idx}/{volumes} acc {scores[-1]:.4f}")
        if DEL_OUTPUTS:
            del logits, pred_onehot, label_onehot
    return sum(scores) / len(scores)


def main():
    model = UNet().cuda()
    knobs.apply(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train_epoch(model, optimizer)
    print("training peak MiB", torch.cuda.max_memory_allocated() // 2 ** 20)
    print("mean dice", val_epoch(model))
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
