# kind: a data analysis agent runs the code that the language model writes in one namespace that lasts for the whole conversation, each question's cells bind new variable names and nobody deletes or resets them; after NousResearch/hermes-agent PR 88637 and stanfordnlp/dspy PR 10238 (persistent interpreter for generated code)
"""Code interpreter of an agent that looks at ticket texts on the GPU.

https://github.com/NousResearch/hermes-agent/pull/88637 (persist Python state per conversation),
https://github.com/stanfordnlp/dspy/pull/10238 (persistent LocalInterpreter)
"""
import ast
import random
import textwrap
import time

import torch
import torch.nn as nn


class TextEncoder(nn.Module):
    def __init__(self, vocab=5000, dim=128):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, dim)
        self.project = nn.Sequential(nn.Linear(dim, 256), nn.GELU(), nn.Linear(256, dim))

    def forward(self, tickets):
        return nn.functional.normalize(self.project(self.words(tickets)), dim=-1)


class LocalInterpreter:
    """Runs cells like a notebook: the value of a last expression is the observation."""

    def __init__(self, tools):
        self.namespace = {"__builtins__": __builtins__, "torch": torch, **tools}
        self.count = 0

    def execute(self, code):
        self.count += 1
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        filename = f"<cell {self.count}>"
        try:
            exec(compile(tree, filename, "exec"), self.namespace)  # LEAK
            value = eval(compile(ast.Expression(last.value), filename, "eval"), self.namespace) if last else None
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return repr(value)[:200]


class ScriptedModel:
    """Stands in for the language model: what it answers to a question, cell by cell."""

    topics = ["billing", "login", "shipping", "refund", "outage", "privacy", "upgrade"]

    def __init__(self, seed=0):
        self.rng = random.Random(seed)

    def cells(self, number):
        topic = self.rng.choice(self.topics)
        name = f"{topic}_{number}"
        rows = self.rng.randint(180, 260)
        yield f"""
            {name}_tickets = load_tickets({topic!r}, rows={rows})
            len({name}_tickets)
            """
        if self.rng.random() < 0.15:  # a slip, the next cell corrects it
            yield f"{name}_vectors = encode({topic}_ticket)"
        yield f"""
            {name}_vectors = encode({name}_tickets)
            {name}_similarity = {name}_vectors @ {name}_vectors.T
            {name}_similarity.fill_diagonal_(0)
            {name}_similarity.shape
            """
        yield f"""
            {name}_best = {name}_similarity.max(dim=1)
            {name}_duplicates = int(({name}_best.values > 0.9).sum())
            {name}_duplicates
            """


class Agent:
    def __init__(self, model, interpreter):
        self.model, self.interpreter = model, interpreter
        self.transcript = []

    def answer(self, number):
        observation = None
        for cell in self.model.cells(number):
            time.sleep(0.01)  # the language model takes longer
            code = textwrap.dedent(cell).strip()
            observation = self.interpreter.execute(code)  # ALSO
            self.transcript.append((code, observation))
        return observation


def main(questions=110):
    torch.manual_seed(0)
    encoder = TextEncoder().to("cuda").eval()

    def load_tickets(topic, rows):
        return torch.randint(0, 5000, (rows, 40))

    @torch.no_grad()
    def encode(tickets):
        return encoder(tickets.to("cuda"))

    agent = Agent(ScriptedModel(), LocalInterpreter({"load_tickets": load_tickets, "encode": encode}))
    for number in range(questions):
        answer = agent.answer(number)
        if number % 15 == 0:
            print(f"question {number}: {answer} duplicates, {len(agent.transcript)} cells run")


if __name__ == "__main__":
    main()
