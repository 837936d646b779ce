"""Random programs give the CPU's values, however little memory there is.

A failure prints its seed: OOMPH_TEST_SEED=… repeats it alone.
"""

from __future__ import annotations

import os
import random
import threading

import pytest
import torch
from support import Simulated
from test_models import fill_device

CARD = "128MiB,context=0,memory=values,cc=8.6,host=2GiB"
SEED = os.environ.get("OOMPH_TEST_SEED")
native = Simulated(CARD.replace("128MiB", "1GiB"), None)
spilling = Simulated(CARD, "reserve:0,host_limit:1GiB,host_ahead:0")
pinned = Simulated(CARD, "reserve:0,host_limit:1GiB,host_ahead:0,host_pages:pinned")

STREAMS = 3
STEPS = 40
SIDES = (8, 64, 256, 512)  # a square float32 tensor of 512 takes 1 MiB
BATCH = 50  # programs in one test


def same(gpu: torch.Tensor, cpu: torch.Tensor) -> bool:
    """Whether all bits are the same, also of what is not a number."""
    return torch.equal(gpu.cpu().view(torch.int32), cpu.view(torch.int32))


class Value:
    """A tensor of the program, on the CPU and on the GPU, and who uses it."""

    def __init__(self, cpu: torch.Tensor, gpu: torch.Tensor, home: int) -> None:
        self.cpu, self.gpu = cpu, gpu
        self.home = home  # the stream that wrote it last
        self.users = {home}


class Program:
    """One random program, carried out on both devices step by step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        self.values: list[Value] = []

    # ---- ordering, as a careful user does it

    def use(self, stream: int, *values: Value) -> None:
        """Makes values readable on a stream."""
        for value in values:
            self.streams[stream].wait_stream(self.streams[value.home])
            if stream not in value.users:
                value.gpu.record_stream(self.streams[stream])
            value.users.add(stream)

    def own(self, stream: int, value: Value) -> None:
        """Makes a value writable on a stream: nobody may be reading it."""
        for user in value.users:
            self.streams[stream].wait_stream(self.streams[user])
        self.use(stream, value)
        value.home = stream

    # ---- steps

    def pick(self) -> Value:
        return self.random.choice(self.values)

    def new(self, stream: int) -> None:
        side = self.random.choice(SIDES)
        cpu = torch.randn(side, side, generator=self.generator)
        source = cpu.pin_memory() if self.random.random() < 0.5 else cpu
        gpu = source.to("cuda", non_blocking=True)
        self.values.append(Value(cpu, gpu, stream))

    def combine(self, stream: int) -> None:
        a = self.pick()
        b = self.random.choice([v for v in self.values if v.cpu.shape == a.cpu.shape])
        self.use(stream, a, b)
        f = self.random.choice([torch.add, torch.mul, torch.matmul, torch.maximum])
        self.values.append(Value(f(a.cpu, b.cpu), f(a.gpu, b.gpu), stream))

    def change(self, stream: int) -> None:
        a = self.pick()
        f = self.random.choice(
            [
                lambda x: torch.softmax(x, 0),
                lambda x: x.cumsum(1).clamp(-9, 9),
                lambda x: x.sort(1).values,
                lambda x: torch.cat([x[: len(x) // 2], x[len(x) // 2 :].flip(0)]),
                lambda x: x.t().contiguous(),
                lambda x: torch.where(x > 0, x, -x),
                lambda x: torch.tanh(x)[:, ::2].repeat(1, 2),
            ]
        )
        self.use(stream, a)
        self.values.append(Value(f(a.cpu), f(a.gpu), stream))

    def write(self, stream: int) -> None:
        a = self.pick()
        f = self.random.choice(
            [
                lambda x: x.mul_(0.5),
                lambda x: x[1:].copy_(x[:-1].clone()),
                lambda x: x.t()[::2].fill_(0.25),
                lambda x: x.masked_fill_(x.abs() > 2, 0.0),
                lambda x: x.view(-1)[: x.numel() // 2].neg_(),
            ]
        )
        self.own(stream, a)
        f(a.cpu)
        f(a.gpu)

    def differentiate(self, stream: int) -> None:
        a, retained = self.pick(), self.random.random() < 0.5
        self.use(stream, a)
        pair = []
        for x in (a.cpu, a.gpu):
            leaf = x.detach().clone().requires_grad_()
            loss = (torch.tanh(leaf @ leaf.t()) * leaf).square().mean()
            loss.backward(retain_graph=retained)
            if retained:
                loss.backward()
            pair.append(leaf.grad)
        self.values.append(Value(*pair, stream))

    def drop(self, _: int) -> None:
        self.values.remove(self.pick())

    def read(self, stream: int) -> None:
        a = self.pick()
        self.use(stream, a)
        assert same(a.gpu, a.cpu)

    def run(self) -> None:
        steps = [self.combine, self.change, self.write, self.differentiate]
        weights = [4, 4, 3, 1, 5, 1, 3]
        for _ in range(STEPS):
            step = self.random.choices(
                [*steps, self.drop, self.read, self.new], weights
            )[0]
            if len(self.values) < 2:
                step = self.new
            stream = self.random.randrange(STREAMS)
            with torch.cuda.stream(self.streams[stream]):
                step(stream)
        torch.cuda.synchronize()
        for value in self.values:
            assert same(value.gpu, value.cpu)


def run_program(seed: int) -> None:
    try:
        Program(seed).run()
    except Exception as error:
        raise AssertionError(f"OOMPH_TEST_SEED={seed}: {error}") from error


def run_programs(first: int, fill: bool) -> None:
    """Runs programs with random amounts of memory left on the device."""
    seeds = [int(SEED)] if SEED else range(first, first + BATCH)
    for seed in seeds:
        kept = fill_device() if fill else []
        for _ in range(random.Random(seed).randrange(12)):  # a few MiB become free
            if kept:
                kept.pop(0)
        run_program(seed)
        del kept


def run_threads(first: int) -> None:
    """Four programs at a time, each with streams of its own."""
    for seed in range(first, first + BATCH, 4):
        failures: list[BaseException] = []

        def run(own_seed: int, failures: list[BaseException] = failures) -> None:
            try:
                run_program(own_seed)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(seed + i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 50, BATCH))
@native
def test_random_programs_with_pytorchs_allocator(first):
    run_programs(first, fill=False)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 1150, BATCH))
@spilling
def test_random_programs_on_a_full_card(first):
    run_programs(first, fill=True)


@pytest.mark.long
@pytest.mark.parametrize("first", range(2000, 2050, BATCH))
@pinned
def test_random_programs_in_pinned_blocks(first):
    run_programs(first, fill=True)


@pytest.mark.long
@pytest.mark.parametrize("first", range(3000, 3050, BATCH))
@spilling
def test_random_programs_in_threads(first):
    run_threads(first)
