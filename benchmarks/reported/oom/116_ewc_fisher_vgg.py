# CARD: 24GiB
# KNOBS: PER_BATCH NUM_BATCH=100 FISHER_BATCH=256 BATCH=256 OPT FUSED
# EXPERT: training the first task fits (3 GiB); the Fisher information is then computed from the mean of the log-likelihoods of 100 batches of 256, whose graphs (0.42 GiB of VGG19 activations each) all stay until the one gradient at the end; take the gradient batch by batch and add the squares, fewer or smaller batches for the estimate; the training batch and optimizer do not matter
# after shivamsaboo17/Overcoming-Catastrophic-forgetting-in-Neural-Networks issue 7 (https://github.com/shivamsaboo17/Overcoming-Catastrophic-forgetting-in-Neural-Networks/issues/7), VGG19 with batch 256 on more than 24 GB
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch import autograd
from torch.utils.data import DataLoader, Dataset

import knobs

BATCH = int(os.environ.get("BATCH", 256))
FISHER_BATCH = int(os.environ.get("FISHER_BATCH", 256))
NUM_BATCH = int(os.environ.get("NUM_BATCH", 100))
PER_BATCH = os.environ.get("PER_BATCH") == "1"


class Cifar(Dataset):
    def __init__(self, task, n):
        self.n, self.images = n, torch.rand(64, 3, 32, 32).roll(task, 0)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i % 64, i % 10

    def collate(self, items):
        idx = torch.tensor([i for i, _ in items])
        return self.images[idx], torch.tensor([t for _, t in items])

    def loader(self, batch):
        return DataLoader(self, batch_size=batch, shuffle=False, collate_fn=self.collate)


class ElasticWeightConsolidation:
    def __init__(self, model, crit, lr=1e-4, weight=1e6):
        self.model, self.crit, self.weight = model, crit, weight
        self.optimizer = torch.optim.Adam(model.parameters(), lr)
        self.consolidated = False

    def _update_mean_params(self):
        for name, param in list(self.model.named_parameters()):
            self.model.register_buffer(name.replace(".", "__") + "_estimated_mean", param.detach().clone())

    def _log_likelihood(self, x, t):
        output = F.log_softmax(self.model(x.cuda()), dim=1)
        return output[:, t.cuda()]

    def _update_fisher_params(self, loader, num_batch):
        params = list(self.model.parameters())
        if PER_BATCH:
            fisher, n = [torch.zeros_like(p) for p in params], 0
            for i, (x, t) in enumerate(loader):
                if i >= num_batch:
                    break
                grads = autograd.grad(self._log_likelihood(x, t).mean(), params)
                for f, g in zip(fisher, grads):
                    f += g ** 2
                n += 1
            fisher = [f / n for f in fisher]
        else:
            log_liklihoods = []
            for i, (x, t) in enumerate(loader):
                if i >= num_batch:
                    break
                log_liklihoods.append(self._log_likelihood(x, t))
                if i % 10 == 0:
                    print(f"fisher batch {i}: allocated MiB {torch.cuda.memory_allocated() // 2 ** 20}")
            log_likelihood = torch.cat(log_liklihoods).mean()
            fisher = [g ** 2 for g in autograd.grad(log_likelihood, params)]
        for (name, _), f in zip(list(self.model.named_parameters()), fisher):
            self.model.register_buffer(name.replace(".", "__") + "_estimated_fisher", f)

    def register_ewc_params(self, dataset):
        self._update_fisher_params(dataset.loader(FISHER_BATCH), NUM_BATCH)
        self._update_mean_params()
        self.consolidated = True

    def _compute_consolidation_loss(self):
        if not self.consolidated:
            return 0
        losses = []
        for name, param in self.model.named_parameters():
            name = name.replace(".", "__")
            mean = getattr(self.model, name + "_estimated_mean")
            fisher = getattr(self.model, name + "_estimated_fisher")
            losses.append((fisher * (param - mean) ** 2).sum())
        return (self.weight / 2) * sum(losses)

    def forward_backward_update(self, x, t):
        output = self.model(x.cuda())
        loss = self._compute_consolidation_loss() + self.crit(output, t.cuda())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    with torch.device("cuda"):
        model = torchvision.models.vgg19(weights=None, num_classes=10)
    knobs.apply(model)
    ewc = ElasticWeightConsolidation(model, nn.CrossEntropyLoss())
    for task in range(2):
        data = Cifar(task, 26000)
        for k, (x, t) in enumerate(data.loader(BATCH)):
            if k == 3:
                break
            print(f"task {task} step {k} loss {ewc.forward_backward_update(x, t):.4f}")
        if task == 0:
            print("training peak MiB", torch.cuda.max_memory_allocated() // 2 ** 20)
            ewc.register_ewc_params(data)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
