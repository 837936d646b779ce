# kind: facebookresearch/segment-anything demo servers: image embeddings are cached, the least recently used one goes
import random
import threading
from collections import OrderedDict

import torch
import torch.nn as nn


class EmbeddingCache:
    def __init__(self, max_items=64):
        self.max_items = max_items
        self.store = OrderedDict()
        self.lock = threading.Lock()
        self.hits = 0

    def get(self, key, make):
        with self.lock:
            if key in self.store:
                self.store.move_to_end(key)
                self.hits += 1
                return self.store[key]
        value = make()
        with self.lock:
            self.store[key] = value
            while len(self.store) > self.max_items:
                self.store.popitem(last=False)
        return value


class Segmenter(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 16, 16)
        layer = nn.TransformerEncoderLayer(d, 4, 256, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(d, 256)

    def encode(self, image):
        return self.encoder(self.patch(image).flatten(2).transpose(1, 2))

    def decode(self, emb, point):
        return self.decoder(emb + point)


model = Segmenter().cuda().eval()
cache = EmbeddingCache()


@torch.inference_mode()
def predict(image_id, click):
    emb = cache.get(image_id, lambda: model.encode(torch.rand(1, 3, 512, 512).cuda()))
    point = torch.tensor(click, device="cuda").float().mean()
    return (model.decode(emb, point) > 0).sum().item()


random.seed(1)
for request in range(260):
    image_id = "img-%d" % (random.randrange(120) if request % 3 == 0 else request)
    predict(image_id, (random.random(), random.random()))
print(len(cache.store), "cached", cache.hits, "hits", torch.cuda.memory_allocated() >> 20, "MiB")
