# kind: the sequences of a recommender lie on the GPU and each epoch trains on a shuffled copy that replaces the one before, so memory rises with the second epoch and then no more; after maciejkula/spotlight issue 121
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def gpu(tensor):
    return tensor.cuda()


def shuffle(*arrays, random_state):
    order = np.arange(len(arrays[0]))
    random_state.shuffle(order)
    index = gpu(torch.from_numpy(order))
    result = tuple(a[index] for a in arrays)
    return result if len(result) > 1 else result[0]


def minibatch(tensor, batch_size):
    for i in range(0, len(tensor), batch_size):
        yield tensor[i:i + batch_size]


class SequenceInteractions:
    def __init__(self, num_users, num_items, length, seed=0):
        rng = np.random.RandomState(seed)
        start = rng.randint(1, num_items, size=(num_users, 1))
        walk = rng.randint(1, 4, size=(num_users, length)).cumsum(1)
        self.sequences = ((start + walk) % (num_items - 1) + 1).astype(np.int64)
        self.num_items = num_items


class LSTMNet(nn.Module):
    def __init__(self, num_items, dim=24):
        super().__init__()
        self.items = nn.Embedding(num_items, dim, padding_idx=0)
        self.biases = nn.Embedding(num_items, 1, padding_idx=0)
        self.lstm = nn.GRU(dim, dim, batch_first=True)

    def user_representation(self, seq):
        out, _ = self.lstm(F.pad(self.items(seq), (0, 0, 1, 0)))
        return out[:, :-1]

    def forward(self, user, targets):
        return (user * self.items(targets)).sum(2) + self.biases(targets).squeeze(2)


class ImplicitSequenceModel:
    def __init__(self, n_iter, batch_size=250):
        self.n_iter, self.batch_size = n_iter, batch_size
        self._random_state = np.random.RandomState(2)
        self._sequences = self._shuffled = None

    def _initialize(self, interactions):
        self._num_items = interactions.num_items
        self._net = gpu(LSTMNet(self._num_items))
        self._optimizer = torch.optim.Adam(self._net.parameters(), lr=1e-2)
        self._sequences = gpu(torch.from_numpy(interactions.sequences))

    def _negative(self, shape):
        return torch.randint(1, self._num_items, shape, device="cuda")

    def _epoch(self, sequences):
        total, n = 0.0, 0
        for seq in minibatch(sequences, self.batch_size):
            seq = seq[:, -16:]
            user = self._net.user_representation(seq)
            positive, negative = self._net(user, seq), self._net(user, self._negative(seq.shape))
            loss = torch.clamp(negative - positive + 1, min=0).mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            total, n = total + loss.item(), n + 1
        return total / n

    def fit(self, interactions, verbose=True):
        self._initialize(interactions)
        for epoch in range(self.n_iter):
            if epoch == 0:
                loss = self._epoch(self._sequences)
            else:
                self._shuffled = shuffle(self._sequences, random_state=self._random_state)
                loss = self._epoch(self._shuffled)
            if verbose:
                print(f"epoch {epoch}: loss {loss:.4f}")


def main():
    torch.manual_seed(0)
    data = SequenceInteractions(num_users=5000, num_items=400, length=200)
    ImplicitSequenceModel(n_iter=8).fit(data)


if __name__ == "__main__":
    main()
