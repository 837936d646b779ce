# kind: the tagger leaves every token's embedding on the token after predict (storage mode gpu), the annotated sentences are kept for their labels only; from flairNLP/flair issues 1274 and 1124
import random
import string
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass
class Token:
    text: str
    _embeddings: dict = field(default_factory=dict)
    tag: str = ""

    def set_embedding(self, name, vector):
        self._embeddings[name] = vector  # LEAK

    def get_embedding(self):
        return torch.cat([self._embeddings[k] for k in sorted(self._embeddings)])

    def clear_embeddings(self):
        self._embeddings = {}


class Sentence:
    def __init__(self, text):
        self.tokens = [Token(w) for w in text.split()]

    def clear_embeddings(self):
        for t in self.tokens:
            t.clear_embeddings()

    def to_tagged_string(self):
        return " ".join(f"{t.text}/{t.tag}" for t in self.tokens)


class CharLanguageModelEmbeddings(nn.Module):
    name = "char-forward"

    def __init__(self, hidden=128):
        super().__init__()
        self.chars = nn.Embedding(128, 32)
        self.rnn = nn.GRU(32, hidden, batch_first=True)

    def embed(self, sentences):
        for s in sentences:
            text = " ".join(t.text for t in s.tokens)
            ids = torch.tensor([[ord(c) % 128 for c in text]], device="cuda")
            states, _ = self.rnn(self.chars(ids))
            end = -1
            for t in s.tokens:
                end += len(t.text) + 1
                t.set_embedding(self.name, states[0, min(end, states.size(1) - 1)].clone())


class WordEmbeddings(nn.Module):
    name = "word"

    def __init__(self, dim=100, buckets=5000):
        super().__init__()
        self.buckets = buckets
        self.table = nn.Embedding(buckets, dim)

    def embed(self, sentences):
        for s in sentences:
            for t in s.tokens:
                idx = torch.tensor(sum(map(ord, t.text)) % self.buckets, device="cuda")
                t.set_embedding(self.name, self.table(idx))


class SequenceTagger(nn.Module):
    TAGS = ["O", "PER", "LOC", "ORG"]

    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleList([CharLanguageModelEmbeddings(), WordEmbeddings()])
        self.linear = nn.Linear(128 + 100, len(self.TAGS))

    def predict(self, sentences, embedding_storage_mode="gpu"):
        with torch.no_grad():
            for e in self.embeddings:
                e.embed(sentences)
            for s in sentences:
                feats = torch.stack([t.get_embedding() for t in s.tokens])
                for t, k in zip(s.tokens, self.linear(feats).argmax(1).tolist()):
                    t.tag = self.TAGS[k]
        if embedding_storage_mode == "none":
            for s in sentences:
                s.clear_embeddings()
        return sentences


class NewsFeed:
    def __init__(self, seed=3):
        self.rng = random.Random(seed)

    def sentence(self):
        words = ["".join(self.rng.choices(string.ascii_lowercase, k=self.rng.randint(2, 7)))
                 for _ in range(self.rng.randint(8, 14))]
        return Sentence(" ".join(words))

    def __iter__(self):
        while True:
            yield [self.sentence() for _ in range(3)]


def main():
    torch.manual_seed(0)
    tagger = SequenceTagger().to("cuda").eval()
    annotated, counts = [], {}
    for i, batch in enumerate(NewsFeed()):
        if i == 80:
            break
        for s in tagger.predict(batch):
            annotated.append(s)  # ALSO
            for t in s.tokens:
                counts[t.tag] = counts.get(t.tag, 0) + 1
        if i % 20 == 0:
            print(i, len(annotated), counts)
    print(annotated[-1].to_tagged_string())


if __name__ == "__main__":
    main()
