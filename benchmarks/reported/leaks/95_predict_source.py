# kind: predictor makes a list of the results of a whole source unless stream=True, and the source is a camera that does not end; from ultralytics/ultralytics issues 636 / 1869 (video inference grows, use stream=True)
import torch
from torch import nn
from torchvision.ops import batched_nms


class Results:
    def __init__(self, orig_img, boxes, masks, path):
        self.orig_img, self.boxes, self.masks, self.path = orig_img, boxes, masks, path

    def __len__(self):
        return len(self.boxes)


class Camera:
    def __init__(self, frames, size=(256, 320)):
        self.frames, self.size = frames, size

    def __iter__(self):
        g = torch.Generator().manual_seed(1)
        for i in range(self.frames):
            yield f"cam0/{i:06d}", torch.rand(3, *self.size, generator=g)


class TinySeg(nn.Module):
    def __init__(self, protos=4):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 12, 3, 4, 1), nn.SiLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.SiLU())
        self.head = nn.Conv2d(24, 5 + protos, 1)
        self.proto = nn.Conv2d(24, protos, 1)

    def forward(self, x):
        f = self.backbone(x)
        return self.head(f), self.proto(f)


class Predictor:
    def __init__(self, model, max_det=10):
        self.model = model.cuda().eval()
        self.max_det = max_det

    def postprocess(self, pred, proto, img, path):
        p = pred[0].flatten(1).t()
        xy, wh = p[:, :2].sigmoid() * 128, p[:, 2:4].sigmoid() * 32
        boxes = torch.cat([xy - wh / 2, xy + wh / 2], 1)
        keep = batched_nms(boxes, p[:, 4], torch.zeros(len(p), dtype=torch.long, device=p.device), 0.6)[:self.max_det]
        masks = torch.einsum("nk,khw->nhw", p[keep, 5:], proto[0])
        masks = nn.functional.interpolate(masks[None], size=img.shape[-2:], mode="bilinear")[0] > 0
        return Results(img, torch.cat([boxes[keep], p[keep, 4:5]], 1), masks, path)

    @torch.no_grad()
    def stream_inference(self, source):
        for path, img in source:
            img = img.cuda()
            pred, proto = self.model(img[None])
            yield self.postprocess(pred, proto, img, path)

    def __call__(self, source, stream=False):
        if stream:
            return self.stream_inference(source)
        return list(self.stream_inference(source))  # LEAK


def main():
    torch.manual_seed(0)
    predictor = Predictor(TinySeg())
    counts = {}
    for r in predictor(Camera(240)):  # ALSO
        counts[r.path] = len(r)


if __name__ == "__main__":
    main()
