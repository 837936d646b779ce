# kind: each batch's prediction, with the whole forward graph behind it, is appended to a list during inference without no_grad; after MarvinLvn/voice-type-classifier issue 12
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class AudioChunks(Dataset):
    """Fixed-length MFCC chunks cut from long wav files."""

    def __init__(self, n_chunks, frames=200, n_feats=40):
        self.n_chunks = n_chunks
        self.frames = frames
        self.n_feats = n_feats

    def __len__(self):
        return self.n_chunks

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(self.frames, self.n_feats, generator=g)


class PyanNetLike(nn.Module):
    def __init__(self, n_feats=40, hidden=64, n_classes=5):
        super().__init__()
        self.tdnn = nn.Conv1d(n_feats, hidden, 5, padding=2)
        self.ff1 = nn.Linear(hidden, hidden)
        self.ff2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, n_classes)

    def forward(self, x):
        x = torch.tanh(self.tdnn(x.transpose(1, 2))).transpose(1, 2)
        x = torch.tanh(self.ff1(x))
        x = torch.tanh(self.ff2(x))
        return torch.sigmoid(self.out(x))


class Application:
    def __init__(self, model, device, batch_size=16):
        self.model = model.to(device)
        self.device = device
        self.batch_size = batch_size

    def apply(self, dataset):
        loader = DataLoader(dataset, batch_size=self.batch_size, shuffle=False)
        self.model.eval()
        predictions = []
        for batch in loader:
            p = self.model(batch.to(self.device))
            predictions.append(p)  # LEAK
        return torch.cat(predictions)


def to_rttm(scores, threshold=0.5):
    labels = ["KCHI", "CHI", "MAL", "FEM", "SPEECH"]
    means = scores.mean(dim=(0, 1))
    return {l: m.item() > threshold for l, m in zip(labels, means)}


def main():
    torch.manual_seed(1)
    device = torch.device("cuda:0")
    app = Application(PyanNetLike(), device)
    chunks = AudioChunks(n_chunks=16 * 100)
    scores = app.apply(chunks)
    print(to_rttm(scores))


if __name__ == "__main__":
    main()
