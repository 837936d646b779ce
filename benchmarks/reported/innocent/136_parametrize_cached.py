# kind: parametrized weights are cached for the time of one step and dropped when the context ends, while more layers become parametrized; after torch.nn.utils.parametrize.cached
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils import parametrize


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


class CayleyOrthogonal(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("eye", torch.eye(n))

    def forward(self, x):
        a = x.triu(1) - x.triu(1).t()
        return torch.linalg.solve(self.eye + a, self.eye - a)


class ResidualRNN(nn.Module):
    def __init__(self, n_in, n, layers):
        super().__init__()
        self.inp = nn.Linear(n_in, n)
        self.cells = nn.ModuleList(nn.Linear(n, n, bias=False) for _ in range(layers))
        self.out = nn.Linear(n, 2)

    def forward(self, seq):
        states = [seq.new_zeros(seq.shape[0], self.inp.out_features) for _ in self.cells]
        for t in range(seq.shape[1]):
            x = self.inp(seq[:, t])
            for i, cell in enumerate(self.cells):
                states[i] = torch.tanh(cell(states[i]) + x)
                x = states[i]
        return self.out(x)


def main():
    torch.manual_seed(0)
    model = ResidualRNN(4, 96, 4).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(100):
        if step % 10 == 0 and step < 40:
            cell = model.cells[step // 10]
            rule = Symmetric() if step == 30 else CayleyOrthogonal(96)
            parametrize.register_parametrization(cell, "weight", rule.cuda())
        seq = torch.randn(16, 6, 4, device="cuda")
        label = (seq[:, :, 0].sum(1) > 0).long()
        with parametrize.cached():
            loss = F.cross_entropy(model(seq), label)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
