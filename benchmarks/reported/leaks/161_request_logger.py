# kind: each request gets a child logger named after it with a filter that adds the request's facts to the records, logging's table of loggers never lets go of them; after wazuh/wazuh issue 4463 and DIRACGrid/DIRAC issue 5280
import asyncio
import logging
import random
import sys
import time
import uuid
from dataclasses import dataclass, field

import torch
import torch.nn as nn

DEVICE = "cuda"
logging.basicConfig(stream=sys.stdout, level=logging.INFO,
                    format="%(levelname)s %(name)s %(message)s")
log = logging.getLogger("matting")
log.setLevel(logging.WARNING)


@dataclass
class Request:
    image: torch.Tensor
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    received: float = field(default_factory=time.monotonic)


class RequestFacts(logging.Filter):
    """Puts the size of the picture and the waiting time into each record."""

    def __init__(self, request):
        super().__init__()
        self.request = request

    def filter(self, record):
        record.size = "x".join(map(str, self.request.image.shape[-2:]))
        record.waited = time.monotonic() - self.request.received
        record.msg = f"[{record.size} after {1000 * record.waited:.0f} ms] {record.msg}"
        return True


class Matting(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, stride=4, padding=1), nn.ReLU(),
                                  nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.ReLU())
        self.up = nn.Sequential(nn.Conv2d(24, 16, 3, padding=1), nn.ReLU(),
                                nn.Upsample(scale_factor=8, mode="bilinear"), nn.Conv2d(16, 1, 1))

    def forward(self, x):
        return self.up(self.down(x)).sigmoid()


class Service:
    def __init__(self):
        self.net = Matting().to(DEVICE).eval()
        self.lock = asyncio.Lock()
        self.served = 0

    async def handle(self, pixels):
        request = Request(pixels.to(DEVICE))
        logger = log.getChild(request.id)  # ALSO
        logger.addFilter(RequestFacts(request))  # LEAK
        logger.info("received")
        async with self.lock:
            with torch.inference_mode():
                alpha = self.net(request.image.unsqueeze(0))[0, 0]
            await asyncio.sleep(0)
        coverage = alpha.mean().item()
        if coverage < 0.02:
            logger.warning("almost nothing in front (%.3f)", coverage)
        logger.info("done")
        self.served += 1
        return {"id": request.id, "coverage": round(coverage, 4)}


async def client(service, pictures, rng):
    answers = []
    for _ in range(pictures):
        h, w = rng.choice(((256, 256), (256, 320), (320, 320)))
        answers.append(await service.handle(torch.rand(3, h, w)))
        await asyncio.sleep(rng.random() * 0.002)
    return answers


async def main():
    service = Service()
    rng = random.Random(5)
    for wave in range(10):
        clients = [client(service, 3, rng) for _ in range(5)]
        answers = sum(await asyncio.gather(*clients), [])
        mean = sum(a["coverage"] for a in answers) / len(answers)
        print(f"wave {wave}: {service.served} pictures served, mean coverage {mean:.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    asyncio.run(main())
