# CARD: 7.94GiB
# KNOBS: FRAMES=500 DTYPE AUTOCAST
# EXPERT: a clip of 500 frames at 224x224 goes through R(2+1)D-18 at once: one feature map of the first stage is 144 x 500 x 112 x 112 floats, 3.4 GiB, although nothing is kept for backward; shorter clips (16 to 32 frames) one after another, 112x112 as it was trained, half precision
# after pytorch/vision issue 1481 (https://github.com/pytorch/vision/issues/1481)
import os

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset

import knobs

N_FRAMES = int(os.environ.get("FRAMES", 500))


class VideoSegments(Dataset):
    """sub-clips of one youtube video, [3, frames, 224, 224]"""

    def __init__(self, n_frames_video=1500):
        self.n = n_frames_video // N_FRAMES
        self.mean = torch.tensor([0.43216, 0.394666, 0.37645]).view(3, 1, 1, 1)
        self.std = torch.tensor([0.22803, 0.22145, 0.216989]).view(3, 1, 1, 1)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        frames = torch.randint(0, 256, (3, 1, 224, 224), dtype=torch.uint8).expand(3, N_FRAMES, 224, 224)
        return (frames.float() / 255 - self.mean) / self.std


class FeatureExtractor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torchvision.models.video.r2plus1d_18(weights=None)
        self.net.fc = torch.nn.Identity()

    def forward(self, x):
        return self.net(x)


def pass_through_c3d_nn(model, n_videos=1):
    features = []
    for v in range(n_videos):
        loader = DataLoader(VideoSegments(), batch_size=1, shuffle=False)
        clip_features = []
        for i, clip in enumerate(loader):
            clip = clip.cuda().to(knobs.dtype())
            with torch.no_grad(), knobs.autocast():
                out = model(clip)
            clip_features.append(out.float().cpu())
            print(f"video {v} segment {i} {tuple(clip.shape)} -> {tuple(out.shape)}")
        features.append(torch.stack(clip_features).mean(0))
    return features


def main():
    model = FeatureExtractor().cuda().eval()
    knobs.apply(model)
    features = pass_through_c3d_nn(model)
    print(features[0].shape)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
