# CARD: 14.58GiB
# KNOBS: CPU_OUTPUTS TRAIN_IMAGES=4000 BATCH=1 CROP=224
# EXPERT: PatchCore keeps the patch embeddings of the whole training set on the GPU (28 x 28 x 1536 floats an image, 4.6 MiB) and joins them at the end; keep them on the CPU or subsample as you go, fewer images or a smaller crop; the batch size does not matter
# after open-edge-platform/anomalib issue 2016 (https://github.com/open-edge-platform/anomalib/issues/2016)
import os

import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import knobs

N_TRAIN = int(os.environ.get("TRAIN_IMAGES", 4000))
CROP = int(os.environ.get("CROP", 224))
CPU_OUTPUTS = os.environ.get("CPU_OUTPUTS") == "1"


class Folder(Dataset):
    """330x330 normal images, resized and cropped"""

    def __init__(self, n):
        self.n = n
        self.images = torch.rand(8, 3, 330, 330)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        o = (330 - CROP) // 2
        return {"image": self.images[i % 8, :, o:o + CROP, o:o + CROP], "label": 0}


class KCenterGreedy:
    def __init__(self, embedding, sampling_ratio):
        self.embedding = embedding
        self.coreset_size = max(1, int(embedding.shape[0] * sampling_ratio))
        self.min_distances = None

    def update_distances(self, center):
        d = F.pairwise_distance(self.features, center, p=2).reshape(-1, 1)
        self.min_distances = d if self.min_distances is None else torch.minimum(self.min_distances, d)

    def sample_coreset(self):
        # random projection as in sklearn's SparseRandomProjection
        proj = torch.randn(self.embedding.shape[1], 128, device=self.embedding.device)
        self.features = self.embedding @ proj
        idx, chosen = 0, []
        for _ in range(min(self.coreset_size, 200)):  # the whole of it takes an hour
            self.update_distances(self.features[idx:idx + 1])
            idx = int(torch.argmax(self.min_distances).item()) % len(self.features)
            chosen.append(idx)
        return self.embedding[chosen]


class PatchcoreModel(nn.Module):
    def __init__(self, layers=("layer2", "layer3"), backbone="wide_resnet50_2", num_neighbors=9):
        super().__init__()
        self.feature_extractor = timm.create_model(backbone, pretrained=False, features_only=True, out_indices=(2, 3))
        self.feature_pooler = nn.AvgPool2d(3, 1, 1)
        self.num_neighbors = num_neighbors
        self.memory_bank = None
        self.embeddings = []

    def forward(self, x):
        with torch.no_grad():
            features = self.feature_extractor(x)
        features = [self.feature_pooler(f) for f in features]
        emb = features[0]
        for f in features[1:]:
            emb = torch.cat((emb, F.interpolate(f, size=emb.shape[-2:], mode="bilinear")), 1)
        b, c, h, w = emb.shape
        embedding = emb.permute(0, 2, 3, 1).reshape(-1, c)
        if self.training:
            return embedding
        dist = torch.cdist(embedding, self.memory_bank)
        return dist.topk(k=min(self.num_neighbors, dist.shape[1]), largest=False).values[:, 0].view(b, h, w)


class Patchcore:
    def __init__(self, coreset_sampling_ratio=0.1):
        self.model = PatchcoreModel().cuda()
        self.model.feature_extractor.eval()
        self.ratio = coreset_sampling_ratio
        self.embeddings = []

    def training_step(self, batch):
        self.model.training = True
        embedding = self.model(batch["image"].cuda())
        self.embeddings.append(embedding.cpu() if CPU_OUTPUTS else embedding)

    def fit_end(self):
        print("Aggregating the embedding extracted from the training set.")
        embeddings = torch.vstack(self.embeddings)
        print("Applying core-set subsampling to get the embedding.", tuple(embeddings.shape))
        self.model.memory_bank = KCenterGreedy(embeddings, self.ratio).sample_coreset().cuda()


def main():
    train = DataLoader(Folder(N_TRAIN), batch_size=int(os.environ.get("BATCH", 1)), num_workers=0)
    test = DataLoader(Folder(16), batch_size=8)
    patchcore = Patchcore()
    knobs.apply(patchcore.model)
    for i, batch in enumerate(train):
        patchcore.training_step(batch)
        if i % 500 == 0:
            print(f"Epoch 0: {100 * i // len(train)}% allocated MiB {torch.cuda.memory_allocated() // 2 ** 20}")
    patchcore.fit_end()
    patchcore.model.training = False
    for batch in test:
        with torch.no_grad():
            score = patchcore.model(batch["image"].cuda()).flatten(1).max(1).values
        print("scores", score.tolist()[:2])
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
