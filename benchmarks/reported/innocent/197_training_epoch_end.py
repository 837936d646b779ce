# kind: outputs of a training epoch are kept until its end; after Lightning-AI/pytorch-lightning issue 15514
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n_items=600):
        super().__init__()
        self.n_items = n_items
        self.enc = nn.Sequential(nn.Linear(n_items, 64), nn.Tanh())
        self.dec = nn.Linear(64, n_items)

    def training_step(self, batch, batch_idx):
        x = batch
        logits = self.dec(self.enc(F.dropout(x, 0.5)))
        loss = -(F.log_softmax(logits, dim=1) * x).sum(1).mean()
        return {"loss": loss, "x": x, "scores": logits}

    def training_epoch_end(self, outputs):
        avg = torch.stack([o["loss"] for o in outputs]).mean()
        hits = sum((o["scores"].argmax(1) == o["x"].argmax(1)).sum().item() for o in outputs)
        return {"avg_loss": avg.item(), "hits": hits}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def detach_outputs(output):
    return {k: v.detach() if isinstance(v, torch.Tensor) else v for k, v in output.items()}


class TrainingEpochLoop:
    def __init__(self, max_batches):
        self.max_batches = max_batches
        self._outputs = []

    def run(self, model, loader, optimizer):
        self._outputs = []
        for batch_idx, batch in enumerate(loader):
            if batch_idx == self.max_batches:
                break
            output = model.training_step(batch.cuda(), batch_idx)
            optimizer.zero_grad()
            output["loss"].backward()
            optimizer.step()
            self._outputs.append(detach_outputs(output))
        outputs, self._outputs = self._outputs, []
        return outputs


class Trainer:
    def __init__(self, max_epochs, limit_train_batches):
        self.max_epochs = max_epochs
        self.epoch_loop = TrainingEpochLoop(limit_train_batches)

    def fit(self, model, loader):
        model.cuda().train()
        optimizer = model.configure_optimizers()
        for epoch in range(self.max_epochs):
            epoch_end_outputs = self.epoch_loop.run(model, loader(), optimizer)
            print("epoch", epoch, model.training_epoch_end(epoch_end_outputs))
            del epoch_end_outputs


def interactions(n, batch_size, n_items):
    def it():
        for _ in range(n):
            yield (torch.rand(batch_size, n_items) < 0.05).float()
    return it


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(max_epochs=6, limit_train_batches=20).fit(Model(), interactions(25, 128, 600))
