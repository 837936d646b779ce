# kind: examples of self-play are a data set per iteration, training reads the concatenation of the last five iterations and the oldest is popped; from suragnair/alpha-zero-general issues 32 and 153 (numItersForTrainExamplesHistory)
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset


class BoardNet(nn.Module):
    def __init__(self, size=9):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(6, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 8, 3, padding=1), nn.ReLU(), nn.Flatten())
        self.pi = nn.Linear(8 * size * size, size * size)
        self.v = nn.Linear(8 * size * size, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.pi(h), torch.tanh(self.v(h)).squeeze(-1)


class Coach:
    def __init__(self, history, games, moves):
        self.net = BoardNet().cuda()
        self.history, self.games, self.moves = history, games, moves
        self.iterations = []

    @torch.no_grad()
    def self_play(self):
        boards, policies = [], []
        board = torch.zeros(self.games, 6, 9, 9, device="cuda")
        for m in range(self.moves):
            pi, _ = self.net(board)
            p = (pi / 0.8).softmax(-1)
            boards.append(board)
            policies.append(p)
            board = board.roll(1, 1)
            board[:, 0] = (p > 1.5 / 81).float().view(-1, 9, 9)
        boards, policies = torch.cat(boards), torch.cat(policies)
        outcome = torch.sign(boards.sum((1, 2, 3)) - 20)
        for flip in ((), (2,), (3,), (2, 3)):
            grid = policies.view(-1, 1, 9, 9).flip(flip) if flip else policies.view(-1, 1, 9, 9)
            yield TensorDataset(boards.flip(flip) if flip else boards, grid.flatten(1), outcome)

    def learn(self):
        self.iterations.append(ConcatDataset(list(self.self_play())))
        if len(self.iterations) > self.history:
            self.iterations.pop(0)
        opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        loader = DataLoader(ConcatDataset(self.iterations), batch_size=64, shuffle=True)
        for k, (x, pi, z) in enumerate(loader):
            logits, v = self.net(x)
            loss = -(pi * logits.log_softmax(-1)).sum(-1).mean() + (v - z).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if k == 9:
                break


if __name__ == "__main__":
    torch.manual_seed(0)
    coach = Coach(history=5, games=40, moves=10)
    for _ in range(16):
        coach.learn()
