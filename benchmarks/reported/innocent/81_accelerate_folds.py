# kind: one Accelerator for a cross-validation, the members of a fold's ensemble pile up in it and free_memory() lets go of them before the next fold; from huggingface/accelerate issue 84 and PR 89 (Accelerator.free_memory)
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def member(width=512):
    return nn.Sequential(
        nn.Linear(40, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, 5),
    )


def fold_data(fold, n=320):
    g = torch.Generator().manual_seed(fold)
    data = TensorDataset(torch.randn(n, 40, generator=g), torch.randint(0, 5, (n,), generator=g))
    return DataLoader(data, batch_size=32, shuffle=True)


def train_member(accelerator, loader, seed):
    torch.manual_seed(seed)
    model = member()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    model, opt = accelerator.prepare(model, opt)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        opt.step()
        opt.zero_grad()
    return model


def vote(members, loader):
    right = seen = 0
    with torch.no_grad():
        for x, y in loader:
            p = sum(m.eval()(x).softmax(-1) for m in members)
            right += int((p.argmax(-1) == y).sum())
            seen += y.numel()
    return right / seen


def cross_validate(folds=6, size=4):
    accelerator = Accelerator()
    scores = []
    for fold in range(folds):
        loader = accelerator.prepare(fold_data(fold))
        ensemble = [train_member(accelerator, loader, 100 * fold + k) for k in range(size)]
        scores.append(vote(ensemble, loader))
        ensemble.clear()
        loader = accelerator.free_memory(loader)
    return scores


if __name__ == "__main__":
    cross_validate()
