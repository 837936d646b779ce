# kind: one Accelerator is reused for many models, it keeps every prepared model and optimizer; from huggingface/accelerate issue 84
import gc
import itertools

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def build_model(width, depth):
    layers = [nn.Linear(20, width), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    layers.append(nn.Linear(width, 2))
    return nn.Sequential(*layers)


def make_dataset(n=192):
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(n, 20, generator=gen)
    y = (x[:, :5].sum(1) > 0).long()
    return TensorDataset(x, y)


def training_function(accelerator, config, dataset):
    model = build_model(config["width"], config["depth"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    loader = DataLoader(dataset, batch_size=64, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)  # LEAK
    model.train()
    criterion = nn.CrossEntropyLoss()
    correct = total = 0
    for _ in range(config["epochs"]):
        for x, y in loader:
            logits = model(x)
            loss = criterion(logits, y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            correct += (logits.argmax(-1) == y).sum().item()
            total += len(y)
    return correct / total


def main():
    torch.manual_seed(3)
    accelerator = Accelerator()
    dataset = make_dataset()
    grid = itertools.product([160, 224], [1, 2], [1e-3, 3e-3, 1e-2, 3e-2])
    scores = {}
    for width, depth, lr in grid:
        config = {"width": width, "depth": depth, "lr": lr, "epochs": 3}
        scores[(width, depth, lr)] = training_function(accelerator, config, dataset)  # ALSO
        gc.collect()
        torch.cuda.empty_cache()
    best = max(scores, key=scores.get)
    accelerator.print("best config", best, "accuracy %.3f" % scores[best])


if __name__ == "__main__":
    main()
