# kind: innocent, request objects and their responses refer to each other, the server collects such cycles every 20 requests; in the manner of inference servers that call gc.collect periodically (gc.disable for latency)
import gc
import random
import time

import torch
import torch.nn as nn


class Request:
    def __init__(self, rid, image):
        self.rid = rid
        self.image = image
        self.created = time.monotonic()
        self.response = None


class Response:
    def __init__(self, request, mask):
        self.request = request
        self.mask = mask
        request.response = self

    def age(self):
        return time.monotonic() - self.request.created


class GCEvery:
    """Automatic collection causes latency spikes; collect between requests."""

    def __init__(self, every):
        self.every = every
        self.n = 0
        gc.disable()

    def tick(self):
        self.n += 1
        if self.n % self.every == 0:
            return gc.collect()
        return 0


class Segmenter(nn.Module):
    def __init__(self, ch=8):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, ch, 3, 1, 1), nn.ReLU(), nn.Conv2d(ch, 1, 3, 1, 1))

    def forward(self, x):
        return self.body(x).sigmoid()


class Server:
    def __init__(self):
        self.model = Segmenter().cuda().eval()
        self.collector = GCEvery(20)
        self.latencies = []

    def handle(self, request):
        with torch.no_grad():
            mask = self.model(request.image[None])[0, 0] > 0.5
        response = Response(request, mask)
        self.latencies.append(response.age())
        return response

    def after_response(self):
        return self.collector.tick()


def main(n=240):
    random.seed(0)
    torch.manual_seed(0)
    server = Server()
    for rid in range(n):
        request = Request(rid, torch.rand(3, 96, 96, device="cuda"))
        coverage = server.handle(request).mask.float().mean().item()
        del request
        collected = server.after_response()
        if collected:
            print(f"request {rid}: coverage {coverage:.2f}, {collected} objects collected, "
                  f"{torch.cuda.memory_allocated() / 2**20:.1f} MiB")
    lat = sorted(server.latencies)
    print(f"p50 {1e3 * lat[len(lat) // 2]:.2f} ms p99 {1e3 * lat[int(len(lat) * 0.99)]:.2f} ms")
    gc.enable()


if __name__ == "__main__":
    main()
