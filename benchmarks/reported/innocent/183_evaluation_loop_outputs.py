# kind: outputs of an evaluation stay until the next one; after Lightning-AI/pytorch-lightning issue 5735
import torch
import torch.nn as nn
import torch.nn.functional as F


class BoringModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 128)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        output = self(batch)
        return {"loss": F.mse_loss(output, torch.ones_like(output))}

    def validation_step(self, batch, batch_idx):
        output = self(batch)
        return {"x": F.mse_loss(output, torch.ones_like(output)), "y_hat": output}

    def validation_epoch_end(self, outputs):
        return torch.stack([o["x"] for o in outputs]).mean().item()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class EvaluationLoop:
    def __init__(self, trainer):
        self.trainer = trainer
        self.outputs = []

    def on_evaluation_epoch_start(self):
        self.outputs = []

    def evaluation_step(self, model, batch, batch_idx):
        return model.validation_step(batch.cuda(), batch_idx)

    def log_epoch_metrics(self, model):
        return model.validation_epoch_end(self.outputs)


class Trainer:
    def __init__(self, max_epochs, limit_val_batches, num_sanity_val_steps=2):
        self.max_epochs = max_epochs
        self.limit_val_batches = limit_val_batches
        self.num_sanity_val_steps = num_sanity_val_steps
        self.evaluation_loop = EvaluationLoop(self)

    def run_evaluation(self, model, loader, max_batches):
        model.eval()
        with torch.no_grad():
            self.evaluation_loop.on_evaluation_epoch_start()
            for batch_idx, batch in enumerate(loader()):
                if batch_idx >= max_batches:
                    break
                output = self.evaluation_loop.evaluation_step(model, batch, batch_idx)
                self.evaluation_loop.outputs.append(output)
            result = self.evaluation_loop.log_epoch_metrics(model)
        model.train()
        return result

    def fit(self, model, train_loader, val_loader):
        model.cuda()
        optimizer = model.configure_optimizers()
        self.run_evaluation(model, val_loader, self.num_sanity_val_steps)
        for epoch in range(self.max_epochs):
            for batch_idx, batch in enumerate(train_loader()):
                loss = model.training_step(batch.cuda(), batch_idx)["loss"]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            val = self.run_evaluation(model, val_loader, self.limit_val_batches)
            print("epoch", epoch, "val", val)


def loader(n, bs):
    def it():
        for _ in range(n):
            yield torch.randn(bs, 32)
    return it


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = Trainer(max_epochs=6, limit_val_batches=20)
    trainer.fit(BoringModel(), loader(30, 256), loader(20, 1024))
