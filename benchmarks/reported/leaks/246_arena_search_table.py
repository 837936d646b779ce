# kind: tree search of an AlphaZero program keeps priors and legal moves of each position in dictionaries keyed by the board, self-play makes a new search for every game, the arena uses the same two for all games of a match; after suragnair/alpha-zero-general issues 24 and 206
"""Arena for two networks that play Breakthrough (8 x 8), a move is a pair of squares.

https://github.com/suragnair/alpha-zero-general/issues/24 and
https://github.com/suragnair/alpha-zero-general/issues/206 (MCTS should not keep "tree" between games)
"""
import math

import numpy as np
import torch
import torch.nn as nn

N = 8


class Breakthrough:
    """The side to move has the positive pieces and goes towards row 0."""

    def start(self):
        board = np.zeros((N, N), np.int8)
        board[:2], board[-2:] = -1, 1
        return board

    def moves(self, board):
        found = []
        for r, c in zip(*np.nonzero(board > 0)):
            for d in (-1, 0, 1):
                if 0 <= c + d < N and board[r - 1, c + d] <= 0 and (d or board[r - 1, c] == 0):
                    found.append((r * N + c) * N * N + (r - 1) * N + c + d)
        return found

    def play(self, board, move):
        board = board.copy()
        source, target = divmod(move, N * N)
        board[divmod(target, N)], board[divmod(source, N)] = 1, 0
        return -board[::-1]

    def lost(self, board):
        return bool((board[-1] < 0).any()) or not (board > 0).any()


class Net(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(2, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 8, 3, padding=1), nn.ReLU())
        self.policy, self.value = nn.Linear(8 * N * N, N**4), nn.Linear(8 * N * N, 1)

    @torch.inference_mode()
    def predict(self, board):
        planes = torch.tensor(np.stack([board > 0, board < 0]), dtype=torch.float32, device="cuda")
        h = self.trunk(planes[None]).flatten(1)
        return self.policy(h).softmax(-1)[0], torch.tanh(self.value(h)).item()


class MCTS:
    def __init__(self, game, net, simulations, cpuct=1.5):
        self.game, self.net, self.simulations, self.cpuct = game, net, simulations, cpuct
        self.Qsa, self.Nsa = {}, {}
        self.Ps, self.Vs = {}, {}  # priors and legal moves

    def best(self, board, rng):
        for _ in range(self.simulations):
            self.search(board, rng, root=True)
        s = board.tobytes()
        return max(self.game.moves(board), key=lambda a: (self.Nsa.get((s, a), 0), rng.random()))

    def search(self, board, rng, root=False):
        if self.game.lost(board):
            return 1.0
        s = board.tobytes()
        if s not in self.Ps:
            legal = torch.tensor(self.game.moves(board), device="cuda")
            pi, v = self.net.predict(board)
            mask = torch.zeros_like(pi).index_fill_(0, legal, 1.0)
            self.Ps[s] = pi * mask / ((pi * mask).sum() + 1e-8)  # LEAK
            self.Vs[s] = legal  # ALSO
            return -v
        moves, priors = self.Vs[s].tolist(), self.Ps[s][self.Vs[s]].tolist()
        visits = math.sqrt(1 + sum(self.Nsa.get((s, a), 0) for a in moves))
        noise = rng.dirichlet([0.3] * len(moves)) if root else np.zeros(len(moves))
        a = max(zip(moves, priors, noise), key=lambda m: self.Qsa.get((s, m[0]), 0.0)
                + self.cpuct * (0.75 * m[1] + 0.25 * m[2]) * visits / (1 + self.Nsa.get((s, m[0]), 0)))[0]
        v = self.search(self.game.play(board, a), rng)
        n = self.Nsa.get((s, a), 0)
        self.Qsa[s, a], self.Nsa[s, a] = (n * self.Qsa.get((s, a), 0.0) + v) / (n + 1), n + 1
        return -v


class Arena:
    def __init__(self, game, first, second, seed=0):
        self.game, self.players, self.rng = game, (first, second), np.random.default_rng(seed)

    def game_of(self, opening):
        board, ply = self.game.start(), 0
        while not self.game.lost(board):
            if ply < 4:  # so that no two games are the same
                move = int(self.rng.choice(self.game.moves(board)))
            else:
                move = self.players[(ply + opening) % 2].best(board, self.rng)  # ALSO
            board, ply = self.game.play(board, move), ply + 1
        return (ply + 1 + opening) % 2, ply


def main(games=24):
    torch.manual_seed(0)
    game = Breakthrough()
    old, new = Net().cuda(), Net().cuda()
    arena = Arena(game, MCTS(game, old, simulations=6), MCTS(game, new, simulations=6))
    wins = [0, 0]
    for g in range(games):
        winner, plies = arena.game_of(opening=g % 2)
        wins[winner] += 1
        if g % 4 == 0:
            print(f"game {g}: {plies} moves, old {wins[0]} : {wins[1]} new")


if __name__ == "__main__":
    main()
