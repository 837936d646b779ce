# kind: heavy-hitter key/value cache grows until its budget and then evicts the positions that got the least attention, answers are long and the cache is new for each prompt; after huggingface/transformers PR 35381
import torch
from torch import nn

torch.manual_seed(11)
dev = "cuda"


class H2OCache:
    def __init__(self, layers, heavy, recent):
        self.heavy, self.recent = heavy, recent
        self.keys = [None] * layers
        self.values = [None] * layers
        self.scores = [None] * layers

    def update(self, layer, k, v):
        if self.keys[layer] is None:
            self.keys[layer], self.values[layer] = k, v
            self.scores[layer] = torch.zeros(k.shape[0], k.shape[1], device=dev)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], k], 1)
            self.values[layer] = torch.cat([self.values[layer], v], 1)
            pad = torch.zeros(k.shape[0], k.shape[1], device=dev)
            self.scores[layer] = torch.cat([self.scores[layer], pad], 1)
        return self.keys[layer], self.values[layer]

    def evict(self, layer, attention):
        self.scores[layer] += attention.sum(1)
        length = self.scores[layer].shape[1]
        if length <= self.heavy + self.recent:
            return
        old = self.scores[layer][:, : length - self.recent]
        keep = old.topk(self.heavy, dim=1).indices.sort(1).values
        tail = torch.arange(length - self.recent, length, device=dev).expand(keep.shape[0], -1)
        index = torch.cat([keep, tail], 1)
        self.scores[layer] = self.scores[layer].gather(1, index)
        index = index[..., None].expand(-1, -1, self.keys[layer].shape[-1])
        self.keys[layer] = self.keys[layer].gather(1, index)
        self.values[layer] = self.values[layer].gather(1, index)


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mlp = nn.Linear(dim, dim)

    def forward(self, x, cache, index):
        q, k, v = self.qkv(x).chunk(3, -1)
        keys, values = cache.update(index, k, v)
        attention = (q @ keys.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + attention @ values
        cache.evict(index, attention)
        return x + torch.tanh(self.mlp(x))


class Decoder(nn.Module):
    def __init__(self, vocab=300, dim=128, layers=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(layers))
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids, cache):
        x = self.embed(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, cache, i)
        return self.out(x[:, -1:])


@torch.inference_mode()
def answer(model, prompt, tokens):
    cache = H2OCache(len(model.layers), heavy=80, recent=48)
    ids = prompt
    out = []
    for _ in range(tokens):
        ids = model(ids, cache).argmax(-1)
        out.append(ids)
    return torch.cat(out, 1), cache.keys[0].shape[1]


def main():
    model = Decoder().to(dev).eval()
    gen = torch.Generator().manual_seed(2)
    for n in range(3):
        prompt = torch.randint(0, 300, (48, 60 + 20 * n), generator=gen).to(dev)
        text, length = answer(model, prompt, tokens=100)
        print(f"prompt {n}: cache length {length}, {text[0].unique().numel()} distinct tokens")


if __name__ == "__main__":
    main()
