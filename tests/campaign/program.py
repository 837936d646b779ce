"""A random program: a list of operations, drawn from a seed.

An operation is a name and arguments, all of which JSON can hold. It speaks of numbered
places: registers ``r`` with tensors, models ``n``, captured graphs ``g``, passes of
autograd ``p``, streams ``s``. What is not there when an operation comes to it is not an
error: the operation does nothing. So any part of a program is a program.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

REGISTERS, MODELS, GRAPHS, PASSES = 8, 3, 3, 2
STREAMS = ("0", "0", "0 high", "0", "1", "1")  # device 0: default and others; device 1
FIRST_OF_OTHER = 4  # the default stream of device 1
AMPLE = 2.0
SIZES_KIB = (200, 1100, 1100, 2100, 2100, 4100)
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Op:
    """One operation."""

    name: str
    arguments: Arguments

    def __str__(self) -> str:
        told = ", ".join(f"{k}={v!r}" for k, v in self.arguments.items())
        return f"{self.name}({told})"


@dataclass(frozen=True)
class Program:
    """What to run, and on which card.

    Attributes:
        seed: That it was drawn from.
        ops: What it does.
        room: The limit of each device, as a share of what the program needs natively;
            from ``AMPLE`` on there is so much that nothing should ever be short.
    """

    seed: int
    ops: tuple[Op, ...]
    room: tuple[float, float]

    @property
    def is_ample(self) -> bool:
        return min(self.room) >= AMPLE

    def has(self, name: str) -> bool:
        """Whether an operation is in it, in threads too."""
        return f'"{name}"' in self.to_json()

    def with_ops(self, ops: list[Op]) -> Program:
        """The same with other operations."""
        return Program(self.seed, tuple(ops), self.room)

    def to_json(self) -> str:
        ops = [[op.name, op.arguments] for op in self.ops]
        return json.dumps({"seed": self.seed, "ops": ops, "room": self.room})

    @staticmethod
    def from_json(text: str) -> Program:
        found = json.loads(text)
        ops = tuple(Op(name, arguments) for name, arguments in found["ops"])
        return Program(found["seed"], ops, tuple(found["room"]))

    def __str__(self) -> str:
        room = ", ".join(f"{share:.2f}" for share in self.room)
        ops = "\n".join(f"  {i:2} {op}" for i, op in enumerate(self.ops))
        return f"seed {self.seed}, limited to {room} of its need\n{ops}"


# ---- drawing


@dataclass
class Drawing:
    """What is known while a program is drawn: who is likely to be there."""

    random: random.Random
    streams: list[int]
    tensors: set[int] = field(default_factory=set)
    models: set[int] = field(default_factory=set)
    graphs: set[int] = field(default_factory=set)
    passes: set[int] = field(default_factory=set)

    def stream(self) -> int:
        return self.random.choice(self.streams)

    def place(self, count: int) -> int:
        return self.random.randrange(count)

    def one(self, among: set[int], count: int) -> int:
        """Something that is there, if anything is."""
        return self.random.choice(sorted(among) or range(count))

    def tensor(self) -> int:
        return self.one(self.tensors, REGISTERS)

    def new(self) -> int:
        """A register that gets a tensor, an empty one if there is one."""
        free = [r for r in range(REGISTERS) if r not in self.tensors]
        found = self.random.choice(free or range(REGISTERS))
        self.tensors.add(found)
        return found

    def size(self) -> int:
        return self.random.choice(SIZES_KIB)

    def pause(self) -> int:
        """Microseconds that the host takes for itself, while the device works on."""
        return self.random.choice([0, 0, 100, 1000, 20000])

    def free_mode(self) -> str:
        return self.random.choice(["record", "later", "later", "wait", "host"])


Draw = Callable[[Drawing], Arguments]
_draws: dict[str, tuple[Draw, float, str]] = {}  # with a weight, and a feature


def op(name: str, weight: float, feature: str = "") -> Callable[[Draw], Draw]:
    """Says how an operation is drawn, how often, and in programs with what feature."""

    def note(draw: Draw) -> Draw:
        _draws[name] = draw, weight, feature
        return draw

    return note


# Memory and streams


@op("new", 5)
def _(d: Drawing) -> Arguments:
    how = d.random.choice(["compute", "compute", "pinned", "pageable"])
    return {"r": d.new(), "s": d.stream(), "kib": d.size(), "how": how}


@op("mix", 6)
def _(d: Drawing) -> Arguments:
    a, b = d.tensor(), d.tensor()
    kind = d.random.choice(["add", "mul", "where", "cumulate", "sort", "cat"])
    return {"r": d.new(), "a": a, "b": b, "s": d.stream(), "kind": kind}


@op("write", 3)
def _(d: Drawing) -> Arguments:
    kind = d.random.choice(["scale", "shift", "part", "mask"])
    return {"r": d.tensor(), "s": d.stream(), "kind": kind}


@op("slow", 3)
def _(d: Drawing) -> Arguments:
    return {"a": d.tensor(), "s": d.stream(), "us": d.random.choice([50, 400, 4000])}


@op("free", 5)
def _(d: Drawing) -> Arguments:
    r = d.tensor()
    d.tensors.discard(r)
    return {"r": r, "mode": d.free_mode()}


@op("look", 2)
def _(d: Drawing) -> Arguments:
    return {"a": d.tensor(), "s": d.stream()}


@op("record", 1)
def _(d: Drawing) -> Arguments:
    return {"a": d.tensor(), "s": d.stream()}


@op("sync", 0.5)
def _(d: Drawing) -> Arguments:
    return {"s": d.random.choice([*d.streams, -1])}


@op("pause", 1)
def _(d: Drawing) -> Arguments:
    return {"us": d.pause()}


@op("empty_cache", 0.5)
def _(d: Drawing) -> Arguments:
    return {}


@op("garbage", 3, "garbage")
def _(d: Drawing) -> Arguments:
    kib, count = d.random.choice([1100, 4100, 20000]), d.random.randrange(1, 12)
    return {"s": d.stream(), "kib": kib, "count": count}


@op("growing", 2, "growing")
def _(d: Drawing) -> Arguments:
    by, count = d.random.choice([1100, 2100]), d.random.randrange(8, 24)
    return {"s": d.stream(), "kib": d.size(), "by": by, "count": count}


@op("resize", 2, "resized")
def _(d: Drawing) -> Arguments:
    return {"r": d.tensor(), "s": d.stream(), "kib": d.size(), "mode": d.free_mode()}


@op("prefetch", 2, "prefetch")
def _(d: Drawing) -> Arguments:
    count, work = d.random.randrange(2, 6), d.random.randrange(1, 6)
    side, main = d.stream(), d.stream()
    kib = d.random.choice(SIZES_KIB[1:])
    return {"count": count, "side": side, "main": main, "kib": kib, "work": work}


@op("foreign", 3, "foreign")
def _(d: Drawing) -> Arguments:
    return {"r": d.new(), "s": d.stream(), "kib": d.random.choice(SIZES_KIB[1:3])}


@op("loader", 1.5, "foreign")
def _(d: Drawing) -> Arguments:
    s, side = d.stream(), d.stream()
    kib, count = d.random.choice([1100, 8100]), d.random.randrange(1, 4)
    return {"s": s, "side": side, "kib": kib, "count": count}


@op("alias", 1, "foreign")
def _(d: Drawing) -> Arguments:
    return {"a": d.tensor()}


@op("pooled", 3, "pools")
def _(d: Drawing) -> Arguments:
    return {"r": d.new(), "s": d.stream(), "kib": d.size(), "pool": d.place(2)}


@op("peer", 3, "devices")
def _(d: Drawing) -> Arguments:
    a = d.tensor()
    to = d.place(len(STREAMS))
    return {"r": d.new(), "a": a, "s": d.stream(), "to": to}


@op("lend", 2, "devices")
def _(d: Drawing) -> Arguments:
    s, side = d.stream(), d.random.choice([1, 2, 3, 5, 5, 5])
    kib, us = d.random.choice(SIZES_KIB[1:]), d.random.choice([400, 4000])
    return {"s": s, "side": side, "kib": kib, "us": us}


@op("move", 2, "residency")
def _(d: Drawing) -> Arguments:
    rs = [d.tensor() for _ in range(d.random.randrange(1, 4))]
    return {"rs": rs, "how": d.random.choice(["evict", "promote", "pin"])}


@op("step", 1)
def _(d: Drawing) -> Arguments:
    return {}


@op("threads", 1.5, "threads")
def _(d: Drawing) -> Arguments:
    lanes = []
    for _ in range(d.random.randrange(2, 4)):
        features = d.random.sample(["resized", "prefetch", "grad", "train"], 2)
        inner = draw_ops(d.random, d.random.randrange(4, 12), set(features))
        lanes.append([[op.name, op.arguments] for op in inner])
    return {"lanes": lanes}


# Autograd

LAYERS = (
    *("scale", "tanh", "sin", "linear", "inplace", "views", "hold"),
    *("checkpoint", "reentrant", "nested"),
)


def _layers(d: Drawing, special: list[str]) -> list[str]:
    few = d.random.sample(LAYERS, 3) + special
    return [d.random.choice(few) for _ in range(d.random.randrange(2, 8))]


@op("forward", 4, "grad")
def _(d: Drawing) -> Arguments:
    p = d.place(PASSES)
    d.passes.add(p)
    special = d.random.choices(["branch", "resized", "use", "use", "hop"], k=2)
    return {
        "p": p,
        "a": d.tensor(),
        "s": d.stream(),
        "branch": d.stream(),
        "uses": [d.tensor() for _ in range(d.random.randrange(3))],
        "layers": _layers(d, special),
    }


@op("backward", 4, "grad")
def _(d: Drawing) -> Arguments:
    p = d.one(d.passes, PASSES)
    twice = d.random.random() < 0.2
    return {"p": p, "r": d.new(), "twice": twice, "pause": d.pause()}


@op("share", 1.5, "grad")
def _(d: Drawing) -> Arguments:
    s, side = d.stream(), d.stream()
    kib, pause = d.random.choice([4100, 8100]), d.pause()
    return {"s": s, "side": side, "kib": kib, "pause": pause}


@op("infer", 1, "grad")
def _(d: Drawing) -> Arguments:
    a = d.tensor()
    layers = _layers(d, [])
    return {"r": d.new(), "a": a, "s": d.stream(), "layers": layers}


# Training

MODELS_KINDS = ("plain", "ddp", "fsdp", "fsdp")
OPTIMIZER_KINDS = ("sgd", "adamw", "fused", "rmsprop")


@op("model", 2, "train")
def _(d: Drawing) -> Arguments:
    n = d.place(MODELS)
    d.models.add(n)
    kind = d.random.choice(MODELS_KINDS)
    return {
        "n": n,
        "kind": kind,
        "s": d.stream() if kind == "plain" else 0,
        "layers": d.random.randrange(2, 6),
        "width": 544 if kind == "fsdp" else d.random.choice([64, 320]),
        "optimizer": d.random.choice(OPTIMIZER_KINDS),
    }


@op("train", 5, "train")
def _(d: Drawing) -> Arguments:
    return {
        "n": d.one(d.models, MODELS),
        "rows": d.random.choice([500, 1000, 1000]),
        "pause": d.pause(),
        "steps": d.random.randrange(1, 4),
    }


@op("towers", 4, "towers")
def _(d: Drawing) -> Arguments:
    """Long, thin ones: two threads save, send and fetch all the time."""
    n = d.place(MODELS)
    d.models.add(n)
    return {
        "n": n,
        "layers": d.random.randrange(12, 30),
        "optimizer": d.random.choice(OPTIMIZER_KINDS),
        "rows": d.random.choice([8500, 10000]),
        "pause": d.pause(),
        "steps": d.random.randrange(2, 5),
    }


# Graphs


@op("capture", 3, "graphs")
def _(d: Drawing) -> Arguments:
    g = d.place(GRAPHS)
    d.graphs.add(g)
    a = d.tensor()
    return {
        "g": g,
        "r": d.new(),
        "a": a,
        "s": d.random.choice([1, 2, 3]),
        "works": d.random.randrange(1, 5),
        "pool": d.random.choice([None, 0, 0]),
    }


@op("replay", 5, "graphs")
def _(d: Drawing) -> Arguments:
    return {"g": d.one(d.graphs, GRAPHS), "s": d.random.choice([0, 1, 2, 3])}


@op("forget", 2, "graphs")
def _(d: Drawing) -> Arguments:
    g = d.one(d.graphs, GRAPHS)
    d.graphs.discard(g)
    s, us = d.random.choice([1, 2, 3]), d.random.choice([0, 4000, 4000])
    more = {"r": d.new(), "to": d.stream(), "kib": d.size()}
    return {"g": g, "s": s, "us": us, **more}


@op("fail_capture", 1, "failures")
def _(d: Drawing) -> Arguments:
    return {
        "a": d.tensor(),
        "s": d.random.choice([1, 2, 3]),
        "how": d.random.choice(["item", "unjoined"]),
        "kib": d.size(),
    }


@op("compiled", 3, "compiled")
def _(d: Drawing) -> Arguments:
    return {"layers": d.random.randrange(2, 5), "steps": d.random.randrange(3, 6)}


FEATURES = {  # and how many of a hundred programs have it
    **{"resized": 30, "prefetch": 25, "foreign": 25, "pools": 20, "devices": 35},
    **{
        "residency": 25,
        "threads": 12,
        "garbage": 20,
        "growing": 25,
        "failures": 10,
        "grad": 60,
        "train": 30,
        "towers": 12,
        "graphs": 30,
    },
    **{"compiled": 3},
}


def draw_ops(choose: random.Random, count: int, features: set[str]) -> list[Op]:
    """Operations of a program with some features."""
    few = choose.sample(range(1, FIRST_OF_OTHER), choose.randrange(1, 4))
    streams = [0, 0, *few, *((4, 5) if "devices" in features else ())]
    drawing = Drawing(choose, streams)
    known = {k: v for k, v in _draws.items() if v[2] in features or v[2] == ""}
    weights = [v[1] * choose.choice([0.3, 1, 2]) for v in known.values()]
    ops = [Op("new", _draws["new"][0](drawing)) for _ in range(2)]
    names = choose.choices(list(known), weights, k=max(count - 2, 0))
    return ops + [Op(name, known[name][0](drawing)) for name in names]


def draw(seed: int) -> Program:
    """The program of a seed."""
    choose = random.Random(seed)
    features = {
        name for name, share in FEATURES.items() if choose.random() * 100 < share
    }
    if "failures" in features:  # of captures: natively no MemPool survives them
        features = features - {"pools"} | {"graphs"}
    if "towers" in features:
        features = features | {"devices"}
    ops = draw_ops(choose, choose.randrange(10, 45), features)
    short = (1 / choose.choice([1.02, 1.1, 1.3, 1.6, 2, 2.5]) for _ in "01")
    ample = 0.5 if "garbage" in features else 0.1
    room = (AMPLE, AMPLE) if choose.random() < ample else tuple(short)
    return Program(seed, tuple(ops), room)
