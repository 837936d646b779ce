# kind: a new version of a ranking model is loaded beside the old one and gets a growing share of the traffic, after the last stage the old version is drained and let go, each version makes its scratch per candidate count when it is first asked; from KServe / Seldon questions on canary rollouts and GPU memory
import random
from dataclasses import dataclass, field

import torch
import torch.nn as nn


class Ranker(nn.Module):
    def __init__(self, version, items=4000, dim=128, layers=3):
        super().__init__()
        torch.manual_seed(version)
        self.version = version
        self.items = nn.Embedding(items, dim)
        self.user = nn.Sequential(*(nn.Sequential(nn.Linear(dim, dim), nn.GELU()) for _ in range(layers)))
        self.scratch = {}

    def _scratch(self, users, candidates):
        key = (users, candidates)
        if key not in self.scratch:
            self.scratch[key] = torch.empty(users, candidates, self.items.embedding_dim, device="cuda")
        return self.scratch[key]

    @torch.inference_mode()
    def rank(self, history, candidates, k=5):
        u = self.user(self.items(history).mean(1))
        gathered = self._scratch(*candidates.shape)
        gathered.copy_(self.items(candidates))
        scores = torch.einsum("ud,ucd->uc", u, gathered)
        return candidates.gather(1, scores.topk(k).indices)


@dataclass
class Deployment:
    model: Ranker
    share: float
    served: int = 0
    clicks: list = field(default_factory=list)

    def click_rate(self):
        recent = self.clicks[-40:]
        return sum(recent) / max(1, len(recent))


class Router:
    stages = (0.05, 0.25, 0.5, 1.0)

    def __init__(self, first, per_stage=6):
        self.stable, self.canary = Deployment(first, 1.0), None
        self.per_stage = per_stage

    def deploy(self, model):
        if self.canary is None:
            self.canary = Deployment(model, self.stages[0])

    def _advance(self):
        c = self.canary
        if c.served < self.per_stage:
            return
        c.served = 0
        at = self.stages.index(c.share)
        if at + 1 < len(self.stages):
            c.share = self.stages[at + 1]
        else:
            self.stable, self.canary = Deployment(c.model, 1.0, clicks=c.clicks), None

    def route(self, rng):
        d = self.stable
        if self.canary is not None and rng.random() < max(self.canary.share, 0.2):
            d = self.canary
        d.served += 1
        return d

    def feedback(self, deployment, clicked):
        deployment.clicks.append(clicked)
        if deployment is self.canary:
            self._advance()


def requests(n, rng):
    g = torch.Generator().manual_seed(8)
    for _ in range(n):
        users, candidates = rng.choice([8, 16]), rng.choice([64, 128, 192])
        yield (torch.randint(0, 4000, (users, 20), generator=g).cuda(),
               torch.randint(0, 4000, (users, candidates), generator=g).cuda())


def main(n=300, every=75):
    rng = random.Random(0)
    router = Router(Ranker(0).cuda().eval())
    for i, (history, candidates) in enumerate(requests(n, rng)):
        if i % every == 30:
            router.deploy(Ranker(1 + i // every).cuda().eval())
        chosen = router.route(rng)
        top = chosen.model.rank(history, candidates)
        router.feedback(chosen, int(top.sum().item() % 3 == 0))
        if i % 50 == 0:
            canary = f"canary {router.canary.model.version} at {router.canary.share:.0%}" if router.canary else "no canary"
            print(f"{i}: version {router.stable.model.version}, {canary}, click rate {router.stable.click_rate():.2f}")


if __name__ == "__main__":
    main()
