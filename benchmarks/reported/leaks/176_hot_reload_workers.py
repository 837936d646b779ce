# kind: each hot reload of a ranking model starts a new serving thread with an inbox of its own, the thread before it waits at its inbox for ever with model and workspace in its frame; after deeplearning4j/deeplearning4j issue 4328 and vc1492a/henosis issue 20
import queue
import threading
from concurrent.futures import Future

import torch
import torch.nn as nn

DEVICE = "cuda"
ITEMS = 600
DIM = 128
RELOADS = 64


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Sequential(nn.Linear(DIM, 256), nn.ReLU(), nn.Linear(256, DIM))
        self.items = nn.Embedding(ITEMS, DIM)

    def forward(self, features, scores):
        torch.mm(self.user(features), self.items.weight.t(), out=scores[: len(features)])
        return scores[: len(features)]


def fetch_weights(version):
    """The newest checkpoint from the training job."""
    torch.manual_seed(version)
    return Ranker().state_dict()


class RankingServer:
    max_batch = 64

    def __init__(self):
        self.inbox = None
        self.version = None

    def reload(self, version):
        model = Ranker()
        model.load_state_dict(fetch_weights(version))
        model = model.to(DEVICE).eval()
        inbox = queue.SimpleQueue()
        ready = threading.Event()
        thread = threading.Thread(target=self.serve, args=(model, inbox, ready), daemon=True)  # ALSO
        thread.start()  # LEAK
        ready.wait()
        self.inbox = inbox
        self.version = version

    def serve(self, model, inbox, ready):
        scores = torch.empty(self.max_batch, ITEMS, device=DEVICE)
        with torch.inference_mode():
            model(torch.zeros(1, DIM, device=DEVICE), scores)
            ready.set()
            while True:
                features, k, future = inbox.get()  # ALSO
                try:
                    ranked = model(features.to(DEVICE), scores).topk(k, dim=1)
                    future.set_result(ranked.indices.tolist())
                except Exception as error:
                    future.set_exception(error)

    def recommend(self, features, k=5):
        future = Future()
        self.inbox.put((features, k, future))
        return future.result(timeout=30)


class Traffic:
    def __init__(self):
        self.clicks = torch.zeros(ITEMS, dtype=torch.long)
        self.generator = torch.Generator().manual_seed(0)

    def users(self):
        n = int(torch.randint(8, 64, (1,), generator=self.generator))
        return torch.randn(n, DIM, generator=self.generator)

    def record(self, ranked):
        self.clicks += torch.bincount(torch.tensor([row[0] for row in ranked]), minlength=ITEMS)


def main():
    server, traffic = RankingServer(), Traffic()
    for version in range(RELOADS):
        server.reload(version)
        for _ in range(3):
            traffic.record(server.recommend(traffic.users()))
        if version % 8 == 0:
            top = traffic.clicks.topk(3)
            print(f"version {server.version}: most clicked {top.indices.tolist()} ({top.values.tolist()} clicks)")


if __name__ == "__main__":
    main()
