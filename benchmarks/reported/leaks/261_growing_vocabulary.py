# kind: embedding table is replaced when new words arrive and each new table is given to the optimizer as a further param group, which keeps all the old tables and their Adam moments; in the manner of pytorch issue 53712 and optimizer.add_param_group questions
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class OnlineVocabulary:
    def __init__(self):
        self.ids = {"<pad>": 0, "<unk>": 1}

    def encode(self, words):
        return [self.ids.setdefault(w, len(self.ids)) for w in words]

    def __len__(self):
        return len(self.ids)


class IntentModel(nn.Module):
    def __init__(self, vocab_size, dim=64, intents=8):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.cls = nn.Linear(dim, intents)

    def forward(self, ids):
        _, h = self.gru(self.embedding(ids))
        return self.cls(h[-1])


def stream_of_utterances(rng, day, n=16, length=12):
    """Every day has a few words that were never seen before."""
    common = [f"w{i}" for i in range(1200)]
    fresh = [f"day{day}_{i}" for i in range(10)]
    for _ in range(n):
        yield [rng.choice(fresh if rng.random() < 0.2 else common) for _ in range(length)]


def grow_embedding(model, optimizer, new_size):
    old = model.embedding
    if new_size <= old.num_embeddings:
        return
    new = nn.Embedding(new_size, old.embedding_dim, padding_idx=0).to(old.weight.device)
    with torch.no_grad():
        new.weight[:old.num_embeddings] = old.weight
    model.embedding = new
    # otherwise the new words are not trained
    optimizer.add_param_group({"params": new.parameters(), "lr": 1e-3})  # LEAK


def main(days=70):
    rng = random.Random(0)
    torch.manual_seed(0)
    vocab = OnlineVocabulary()
    vocab.encode(f"w{i}" for i in range(1200))
    model = IntentModel(len(vocab)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for day in range(days):
        batch = [vocab.encode(words) for words in stream_of_utterances(rng, day)]
        grow_embedding(model, optimizer, len(vocab))  # ALSO
        ids = torch.tensor(batch, device="cuda")
        labels = ids.sum(1) % 8
        for _ in range(2):
            loss = F.cross_entropy(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # ALSO
        if day % 20 == 0:
            print(f"day {day}: {len(vocab)} words, loss {loss.item():.4f}, "
                  f"{torch.cuda.memory_allocated() / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
