# kind: Results objects with full-resolution masks of each video frame are kept in a list on the GPU; from ultralytics/ultralytics issues 1504, 3983
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Boxes:
    xyxy: torch.Tensor
    conf: torch.Tensor
    cls: torch.Tensor


@dataclass
class Results:
    path: str
    orig_shape: tuple
    boxes: Boxes
    masks: torch.Tensor

    def verbose(self):
        return f"{self.path}: {self.orig_shape[0]}x{self.orig_shape[1]} {len(self.masks)} objects"


class SegmentationModel(nn.Module):
    def __init__(self, nc=3, nm=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU())
        self.proto = nn.Conv2d(32, nm, 1)
        self.detect = nn.Conv2d(32, 4 + nc + nm, 3, 4, 1)

    def forward(self, im):
        x = self.stem(im)
        return self.detect(x).flatten(2).transpose(1, 2), self.proto(x)


class SegmentationPredictor:
    def __init__(self, model, retina_masks=True, max_det=4):
        self.model = model.eval()
        self.retina_masks = retina_masks
        self.max_det = max_det

    def postprocess(self, preds, protos, path, shape):
        scores, cls = preds[0, :, 4:7].sigmoid().max(-1)
        keep = scores.topk(self.max_det).indices
        p = preds[0, keep]
        masks = (p[:, 7:] @ protos[0].flatten(1)).view(len(keep), *protos.shape[2:])
        if self.retina_masks:
            masks = F.interpolate(masks[None], size=shape, mode="bilinear")[0]
        return Results(path, shape, Boxes(p[:, :4], scores[keep], cls[keep]), masks.gt(0).float())

    @torch.no_grad()
    def stream_inference(self, source):
        for i, frame in enumerate(source):
            im = frame.unsqueeze(0).cuda() / 255
            preds, protos = self.model(im)
            yield self.postprocess(preds, protos, f"video 1/1 ({i + 1}/240)", tuple(frame.shape[1:]))

    def __call__(self, source, stream=False):
        gen = self.stream_inference(source)
        return gen if stream else list(gen)


def video(n, h=96, w=160):
    gen = torch.Generator().manual_seed(3)
    for _ in range(n):
        yield torch.randint(0, 255, (3, h, w), generator=gen).float()


def main():
    torch.manual_seed(0)
    predictor = SegmentationPredictor(SegmentationModel().cuda())
    outputs = []
    for result in predictor(video(240), stream=True):
        if len(outputs) % 40 == 0:
            print(result.verbose())
        outputs.append(result)  # LEAK
    area = sum(r.masks.mean().item() for r in outputs) / len(outputs)
    print(f"{len(outputs)} frames, mean mask area {area:.3f}")


if __name__ == "__main__":
    main()
