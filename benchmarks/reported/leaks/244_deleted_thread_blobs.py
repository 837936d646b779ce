# kind: the in-memory checkpointer of an agent graph keeps channel values apart from the checkpoints, under thread, channel and version; deleting a thread when its conversation is over takes away checkpoints and writes and leaves the values; after langchain-ai/langgraph issue 8054
"""Visual question answering agent whose state is checkpointed after every node.

https://github.com/langchain-ai/langgraph/issues/8054 (inmem runtime: deleting a thread leaks its channel blobs)
"""
import itertools
import random
from collections import defaultdict

import timm
import torch
import torch.nn as nn


class InMemorySaver:
    def __init__(self):
        self.storage = defaultdict(dict)  # thread -> checkpoint id -> checkpoint
        self.writes = defaultdict(list)  # (thread, checkpoint id) -> who wrote what
        self.blobs = {}  # (thread, channel, version) -> value
        self.ids = itertools.count()

    def put(self, thread, values, versions, changed, node):
        checkpoint_id = next(self.ids)
        for channel in changed:
            self.blobs[thread, channel, versions[channel]] = values[channel]  # LEAK
        self.storage[thread][checkpoint_id] = dict(versions)
        self.writes[thread, checkpoint_id].append((node, tuple(changed)))

    def latest(self, thread):
        if not self.storage[thread]:
            return {}, defaultdict(int)
        versions = self.storage[thread][max(self.storage[thread])]
        values = {channel: self.blobs[thread, channel, v] for channel, v in versions.items()}
        return values, defaultdict(int, versions)

    def delete_thread(self, thread):
        self.storage.pop(thread, None)
        for key in [k for k in self.writes if k[0] == thread]:
            del self.writes[key]


class Graph:
    """Nodes run one after another; each returns the channels that it changes."""

    def __init__(self, nodes, saver):
        self.nodes, self.saver = nodes, saver

    def invoke(self, thread, inputs):
        values, versions = self.saver.latest(thread)
        steps = [("__start__", lambda state: inputs)] + self.nodes
        for name, node in steps:
            update = node(values)
            values = {**values, **update}
            for channel in update:
                versions[channel] += 1
            self.saver.put(thread, values, versions, list(update), name)  # ALSO
        return values["answer"]


class Agent:
    def __init__(self, answers=300, dim=192):
        self.vit = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=256, depth=3).cuda().eval()
        self.words = nn.Embedding(2000, dim).cuda()
        self.attend = nn.MultiheadAttention(dim, 3, batch_first=True).cuda()
        self.head = nn.Linear(dim, answers).cuda()
        nodes = [("look", self.look), ("ground", self.ground), ("speak", self.speak)]
        self.graph = Graph(nodes, InMemorySaver())

    def look(self, state):
        if "seen" in state and state["seen"] == state["picture"][0]:
            return {}
        name, pixels = state["picture"]
        return {"patches": self.vit.forward_features(pixels.cuda()), "seen": name}

    def ground(self, state):
        question = self.words(state["question"].cuda())
        return {"grounded": self.attend(question, state["patches"], state["patches"])[0]}

    def speak(self, state):
        return {"answer": self.head(state["grounded"].mean(1)).argmax(-1).item()}

    @torch.no_grad()
    def ask(self, thread, picture, question):
        return self.graph.invoke(thread, {"picture": picture, "question": question})


def visitors(n, rng):
    for i in range(n):
        picture = (f"IMG_{i:04d}.jpg", torch.rand(1, 3, 256, 256))
        yield f"thread-{i}", picture, [torch.randint(0, 2000, (1, rng.randint(5, 16))) for _ in range(rng.randint(2, 4))]


def main(conversations=90):
    torch.manual_seed(0)
    agent, answers = Agent(), defaultdict(int)
    for i, (thread, picture, questions) in enumerate(visitors(conversations, random.Random(1))):
        for question in questions:
            answers[agent.ask(thread, picture, question)] += 1
        agent.graph.saver.delete_thread(thread)
        if i % 15 == 0:
            print(f"{thread}: {len(answers)} different answers so far, {len(agent.graph.saver.storage)} threads open")


if __name__ == "__main__":
    main()
