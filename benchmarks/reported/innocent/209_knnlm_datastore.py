# kind: the keys of a nearest-neighbour language model are written for every token of the training text until the text is used up, after that the datastore is only read; after urvashik/knnlm (build_dstore.py and eval_lm.py)
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM = 400, 96


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 192, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, VOCAB)

    def features(self, ids):
        n = ids.shape[1]
        mask = torch.full((n, n), float("-inf"), device=ids.device).triu(1)
        return self.body(self.emb(ids), mask=mask)


class Datastore:
    def __init__(self, k=8, temperature=10.0):
        self.k, self.temperature = k, temperature
        self.blocks = []
        self.keys = self.values = None

    def append(self, keys, values):
        self.blocks.append((keys, values))

    def finish(self):
        self.keys = torch.cat([k for k, _ in self.blocks])
        self.values = torch.cat([v for _, v in self.blocks])
        self.blocks = []

    def __len__(self):
        return len(self.keys) if self.keys is not None else sum(len(k) for k, _ in self.blocks)

    def probabilities(self, queries):
        dist, idx = torch.cdist(queries, self.keys).topk(self.k, largest=False)
        weight = torch.softmax(-dist / self.temperature, -1)
        out = torch.zeros(len(queries), VOCAB, device=queries.device)
        return out.scatter_add_(1, self.values[idx], weight)


class Text:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.table = torch.randint(0, VOCAB, (VOCAB, 3), generator=self.g)

    def block(self, n=4, length=33):
        ids = torch.randint(0, VOCAB, (n, 1), generator=self.g)
        for _ in range(length - 1):
            pick = torch.randint(0, 3, (n, 1), generator=self.g)
            ids = torch.cat([ids, self.table[ids[:, -1:], pick]], dim=1)
        return ids.cuda()


class KNNLM:
    def __init__(self, lmbda=0.25):
        self.model = Transformer().cuda().eval()
        self.store = Datastore()
        self.lmbda = lmbda

    @torch.no_grad()
    def save_knn_keys(self, ids):
        feats = self.model.features(ids[:, :-1]).reshape(-1, DIM)
        self.store.append(feats, ids[:, 1:].reshape(-1))

    @torch.no_grad()
    def score(self, ids):
        feats = self.model.features(ids[:, :-1]).reshape(-1, DIM)
        p = torch.softmax(self.model.head(feats), -1)
        mixed = (1 - self.lmbda) * p + self.lmbda * self.store.probabilities(feats)
        return F.nll_loss(mixed.clamp_min(1e-9).log(), ids[:, 1:].reshape(-1)).item()


def main():
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)
    lm, text = KNNLM(), Text(3)
    for i in range(80):
        lm.save_knn_keys(text.block())
        if i % 20 == 0:
            print(f"block {i}: {len(lm.store)} keys")
    lm.store.finish()
    for i in range(110):
        loss = lm.score(text.block(n=2))
        if i % 22 == 0:
            print(f"eval {i}: {loss:.3f}")


if __name__ == "__main__":
    main()
