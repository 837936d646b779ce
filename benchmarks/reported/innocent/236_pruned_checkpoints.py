# kind: the in-memory checkpointer of an agent graph keeps the last three checkpoints of a conversation, drops channel values that none of them refers to any more and everything when a conversation is deleted, up to fourteen conversations are open at a time and the doors open slowly; after langchain-ai/langgraph issue 8054 and prasadgaikwad/langchain4j-demo issue 252 (the repaired form)
"""Design assistant that revises a sketch with its users, every turn can be taken back.

https://github.com/langchain-ai/langgraph/issues/8054,
https://github.com/prasadgaikwad/langchain4j-demo/issues/252 (checkpoints never pruned)
"""
import random
import time
from collections import OrderedDict, defaultdict

import torch
import torch.nn as nn


class PruningSaver:
    def __init__(self, keep=3):
        self.keep = keep
        self.storage = defaultdict(OrderedDict)  # thread -> checkpoint id -> versions of the channels
        self.blobs = {}  # (thread, channel, version) -> value

    def put(self, thread, checkpoint_id, values, versions, changed):
        for channel in changed:
            self.blobs[thread, channel, versions[channel]] = values[channel]
        checkpoints = self.storage[thread]
        checkpoints[checkpoint_id] = dict(versions)
        while len(checkpoints) > self.keep:
            checkpoints.popitem(last=False)
        self._sweep(thread)

    def _sweep(self, thread):
        alive = {(thread, c, v) for versions in self.storage[thread].values() for c, v in versions.items()}
        for key in [k for k in self.blobs if k[0] == thread and k not in alive]:
            del self.blobs[key]

    def load(self, thread, checkpoint_id=None):
        checkpoints = self.storage[thread]
        if not checkpoints:
            return {}, defaultdict(int)
        versions = checkpoints[checkpoint_id if checkpoint_id in checkpoints else next(reversed(checkpoints))]
        return {c: self.blobs[thread, c, v] for c, v in versions.items()}, defaultdict(int, versions)

    def delete_thread(self, thread):
        self.storage[thread].clear()
        self._sweep(thread)
        del self.storage[thread]


class Reviser(nn.Module):
    """A sketch of 32 x 32 cells and a wish give the next sketch."""

    def __init__(self, dim=24, words=500):
        super().__init__()
        self.wish = nn.EmbeddingBag(words, dim)
        self.draw = nn.Conv2d(dim, dim, 3, padding=1)
        self.mix = nn.Conv2d(2 * dim, dim, 1)
        self.judge = nn.Linear(dim, 1)

    def forward(self, sketch, words):
        wish = self.wish(words)[:, :, None, None].expand_as(sketch)
        new = torch.tanh(self.mix(torch.cat([self.draw(sketch), wish], 1)))
        return new, self.judge(new.mean((2, 3)))


class Assistant:
    def __init__(self):
        self.model = Reviser().to("cuda").eval()
        self.saver = PruningSaver()

    @torch.no_grad()
    def turn(self, thread, number, words, undo):
        values, versions = self.saver.load(thread, number - 2 if undo else None)
        if not values:
            values = {"sketch": torch.randn(1, 24, 32, 32, device="cuda"), "score": None}
        sketch, score = self.model(values["sketch"], words.to("cuda"))
        values = {"sketch": sketch, "score": score}
        for channel in values:
            versions[channel] = number
        self.saver.put(thread, number, values, versions, list(values))
        return score.item()


class Visitors:
    """Somebody comes every fourth tick as long as there is a free seat, and stays for 60 to 90 turns."""

    def __init__(self, seats=14, seed=5):
        self.rng, self.seats, self.born = random.Random(seed), seats, 0
        self.open = {}

    def tick(self, t):
        if t % 4 == 0 and len(self.open) < self.seats:
            self.open[f"visitor-{self.born}"] = [0, self.rng.randint(60, 90)]
            self.born += 1
        for name, state in list(self.open.items()):
            state[0] += 1
            yield name, state[0], torch.randint(0, 500, (1, self.rng.randint(3, 12))), self.rng.random() < 0.1
            if state[0] == state[1]:
                del self.open[name]
                yield name, None, None, False


def main(ticks=200):
    torch.manual_seed(0)
    assistant, visitors = Assistant(), Visitors()
    for t in range(ticks):
        time.sleep(0.015)
        for thread, number, words, undo in visitors.tick(t):
            if number is None:
                assistant.saver.delete_thread(thread)
            else:
                score = assistant.turn(thread, number, words, undo)
        if t % 25 == 0:
            print(f"tick {t}: {len(assistant.saver.storage)} conversations, {len(assistant.saver.blobs)} values, {score:.3f}")


if __name__ == "__main__":
    main()
