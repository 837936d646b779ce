# kind: a callback records the residual of every batch in the nested history of a scikit-like net (history[epoch]["batches"][batch][key]) as if they were numbers, the history lives as long as the net; from skorch questions on record_batch and the size of the history
import torch
import torch.nn as nn


class History(list):
    """Rows for the epochs, each with a list of rows for the batches."""

    def new_epoch(self):
        self.append({"batches": []})

    def new_batch(self):
        self[-1]["batches"].append({})

    def record(self, attr, value):
        self[-1][attr] = value

    def record_batch(self, attr, value):
        self[-1]["batches"][-1][attr] = value  # LEAK


class Callback:
    def on_train_begin(self, net): pass
    def on_epoch_end(self, net): pass
    def on_batch_end(self, net, X, y_pred, loss): pass


class PassthroughScoring(Callback):
    def __init__(self, name):
        self.name = name

    def on_epoch_end(self, net):
        rows = net.history[-1]["batches"]
        net.history.record(self.name, sum(r[self.name] for r in rows) / len(rows))


class PrintLog(Callback):
    def on_epoch_end(self, net):
        row = net.history[-1]
        print(f"{len(net.history):>4}", "  ".join(f"{k} {v:.4f}" for k, v in row.items() if isinstance(v, float)))


class ResidualSpectrum(Callback):
    """Mean spectrum of what the autoencoder does not explain, once per epoch."""

    def on_batch_end(self, net, X, y_pred, loss):
        residual = X - y_pred
        net.history.record_batch("residual", residual)  # ALSO

    def on_epoch_end(self, net):
        power = [torch.fft.rfft(row["residual"], dim=-1).abs().mean() for row in net.history[-1]["batches"]]
        net.history.record("residual_power", torch.stack(power).mean().item())


class NeuralNet:
    def __init__(self, module, criterion, lr=1e-3, max_epochs=8, callbacks=(), device="cuda"):
        self.module_ = module.to(device)
        self.criterion_ = criterion
        self.optimizer_ = torch.optim.Adam(self.module_.parameters(), lr=lr)
        self.max_epochs, self.device = max_epochs, device
        self.callbacks = [*callbacks, PassthroughScoring("train_loss"), PrintLog()]
        self.history = History()

    def notify(self, name, **kw):
        for cb in self.callbacks:
            getattr(cb, name)(self, **kw)

    def train_step(self, X):
        self.module_.train()
        self.optimizer_.zero_grad()
        y_pred = self.module_(X)
        loss = self.criterion_(y_pred, X)
        loss.backward()
        self.optimizer_.step()
        return y_pred.detach(), loss.item()

    def run_single_epoch(self, batches):
        for X in batches:
            self.history.new_batch()
            X = X.to(self.device)
            y_pred, loss = self.train_step(X)
            self.history.record_batch("train_loss", loss)
            self.notify("on_batch_end", X=X, y_pred=y_pred, loss=loss)

    def fit(self, data):
        self.notify("on_train_begin")
        for _ in range(self.max_epochs):
            self.history.new_epoch()
            self.run_single_epoch(data())
            self.notify("on_epoch_end")
        return self


class WaveAutoencoder(nn.Module):
    def __init__(self, length=1024, code=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(length, 96), nn.ReLU(), nn.Linear(96, code))
        self.dec = nn.Sequential(nn.Linear(code, 96), nn.ReLU(), nn.Linear(96, length))

    def forward(self, x):
        return self.dec(self.enc(x))


def waves(batches=16, batch_size=96, length=1024):
    t = torch.linspace(0, 1, length)
    for _ in range(batches):
        freq, phase = 2 + 30 * torch.rand(batch_size, 1), 6.28 * torch.rand(batch_size, 1)
        yield torch.sin(6.28 * freq * t + phase)


if __name__ == "__main__":
    torch.manual_seed(0)
    net = NeuralNet(WaveAutoencoder(), nn.MSELoss(), callbacks=[ResidualSpectrum()])
    net.fit(waves)
