# kind: https://github.com/pytorch/pytorch/issues/10348: an inference worker keeps the exceptions of rejected requests, with their tracebacks
import queue
import threading
import time

import torch
from torch import nn

device = "cuda"


class RejectedInput(Exception):
    pass


class Classifier(nn.Module):
    def __init__(self, width=768, classes=400):
        super().__init__()
        self.embed = nn.Embedding(8000, width)
        layer = nn.TransformerEncoderLayer(width, 8, 2 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, ids):
        h = self.encoder(self.embed(ids))
        return self.head(h.mean(1)), h


class Worker(threading.Thread):
    """Takes requests from a queue; what goes wrong is looked at by the monitor later."""

    def __init__(self, model, requests, replies):
        super().__init__(daemon=True)
        self.model, self.requests, self.replies = model, requests, replies
        self.post_mortem = {}

    def check(self, request, scores, hidden):
        if request["lang"] not in ("en", "fr", "de"):
            raise RejectedInput(f"request {request['id']}: no head for language {request['lang']}")
        return scores.softmax(-1)

    @torch.no_grad()
    def handle(self, request):
        ids = torch.randint(0, 8000, (4, request["length"]), device=device)
        scores, hidden = self.model(ids)
        probs = self.check(request, scores, hidden)
        return probs.topk(5).indices.cpu()

    def run(self):
        while True:
            request = self.requests.get()
            if request is None:
                return
            try:
                reply = self.handle(request)
            except RejectedInput as error:
                self.post_mortem[request["id"]] = {"error": error, "when": time.time()}  # LEAK
                reply = None
            self.replies.put((request["id"], reply))


def main():
    torch.manual_seed(0)
    model = Classifier().to(device).eval()
    requests, replies = queue.Queue(8), queue.Queue()
    worker = Worker(model, requests, replies)
    worker.start()
    langs = ["en", "fr", "xx"]
    good = bad = 0
    for i in range(180):
        requests.put({"id": i, "lang": langs[i % 3], "length": 128})
        _, reply = replies.get(timeout=60)
        if reply is None:
            bad += 1
        else:
            good += 1
        if i % 20 == 0:
            print(f"request {i}: ok {good} rejected {bad}, {torch.cuda.memory_allocated() / 2**20:.2f} MiB")
    requests.put(None)
    worker.join()
    print("rejected:", len(worker.post_mortem))


if __name__ == "__main__":
    main()
