# kind: checkpoints are staged in one of two snapshots on the GPU which a background thread writes, both exist after the second one and are then reused; from torchsnapshot / async checkpointing discussions
import io
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class AsyncCheckpointer:
    def __init__(self, every):
        self.every = every
        self.pool = ThreadPoolExecutor(1)
        self.stage = [None, None]
        self.turn = 0
        self.pending = None
        self.sizes = []

    def _write(self, step, snapshot):
        buf = io.BytesIO()
        torch.save({k: v.cpu() for k, v in snapshot.items()}, buf)
        return step, len(buf.getvalue())

    def _collect(self):
        if self.pending is not None:
            self.sizes.append(self.pending.result())
            self.pending = None

    def maybe_save(self, step, model, optimizer):
        if step % self.every:
            return
        self._collect()
        tensors = {k: v for k, v in model.state_dict().items()}
        for i, p in enumerate(model.parameters()):
            for k, v in optimizer.state[p].items():
                if torch.is_tensor(v):
                    tensors[f"optim.{i}.{k}"] = v
        if self.stage[self.turn] is None:
            self.stage[self.turn] = {k: torch.empty_like(v) for k, v in tensors.items()}
        for k, v in tensors.items():
            self.stage[self.turn][k].copy_(v)
        self.pending = self.pool.submit(self._write, step, self.stage[self.turn])
        self.turn = 1 - self.turn

    def close(self):
        self._collect()
        self.pool.shutdown()
        self.stage = [None, None]


def series(batch, length=48):
    phase = torch.rand(batch, 1) * 6.28
    t = torch.arange(length + 1) * 0.2
    return (torch.sin(t + phase) + 0.1 * torch.randn(batch, length + 1))[..., None]


class Forecaster(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.rnn, self.out = nn.GRU(1, hidden, num_layers=2, batch_first=True), nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


torch.manual_seed(0)
model = Forecaster().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
ckpt = AsyncCheckpointer(every=25)
for step in range(1, 161):
    x = series(4, 14).cuda()
    loss = (model(x[:, :-1]) - x[:, 1:]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ckpt.maybe_save(step, model, optimizer)
    if step % 40 == 0:
        print(step, "loss %.4f" % loss.item(), "written", ckpt.sizes[-1:])
ckpt.close()
print(len(ckpt.sizes), "checkpoints")
