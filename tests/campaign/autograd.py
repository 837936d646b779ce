"""Forward and backward, over whatever memory a program's tensors lie in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from campaign import memory
from campaign.machine import Machine, Missing, Pass, Value, handler
from campaign.memory import numbers
from campaign.program import FIRST_OF_OTHER

WIDTH = 64


class Sine(torch.autograd.Function):
    """Its backward differentiates by itself, within that of others."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            (found,) = torch.autograd.grad((inner * 0.5).sin().sum(), [inner])
        return gradient * found


class Chain(nn.Module):
    """Layers of a few kinds, one after the other.

    Args:
        layers: Their kinds.
        uses: Tensors of the program that are multiplied by, and saved as they are.
        side: The stream that branches go to; None: there are none.
        other: The device that hops go to and come back from.
    """

    def __init__(
        self,
        layers: list[str],
        uses: list[torch.Tensor],
        side: torch.cuda.Stream | None,
        device: torch.device,
        other: torch.device | None,
    ) -> None:
        super().__init__()
        self.kinds, self.uses, self.side, self.other = layers, uses, side, other
        self.scale = nn.Parameter(torch.full((1,), 1.25, device=device))
        matrix = numbers(WIDTH * WIDTH * 4 // 1024, 5, device).view(WIDTH, WIDTH)
        self.matrix = nn.Parameter((matrix - 0.5) * 0.25)
        self.held: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.held.clear()
        for turn, kind in enumerate(self.kinds):
            x = getattr(self, f"do_{kind}")(x, turn)
        return x.tanh().square().mean()

    def do_scale(self, x: torch.Tensor, _: int) -> torch.Tensor:
        return x * self.scale

    def do_tanh(self, x: torch.Tensor, _: int) -> torch.Tensor:
        return x.tanh()

    def do_sin(self, x: torch.Tensor, _: int) -> torch.Tensor:
        return x.sin()

    def do_linear(self, x: torch.Tensor, _: int) -> torch.Tensor:
        return x @ self.matrix

    def do_inplace(self, x: torch.Tensor, _: int) -> torch.Tensor:
        return (x * 1.5).add_(0.1).relu_()

    def do_views(self, x: torch.Tensor, _: int) -> torch.Tensor:
        a, b = x.chunk(2, 1)
        return torch.cat([a.tanh() * b, b.sin()], 1)

    def do_hold(self, x: torch.Tensor, _: int) -> torch.Tensor:
        x = x * x
        self.held.append(x.detach())
        return x

    def do_checkpoint(self, x: torch.Tensor, _: int) -> torch.Tensor:
        return checkpoint(self._recomputed, x, use_reentrant=False)

    def do_reentrant(self, x: torch.Tensor, _: int) -> torch.Tensor:
        return checkpoint(self._recomputed, x, use_reentrant=True)

    def _recomputed(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 0.75).sin().exp() * x

    def do_nested(self, x: torch.Tensor, _: int) -> torch.Tensor:
        return Sine.apply(x)

    def do_branch(self, x: torch.Tensor, _: int) -> torch.Tensor:
        """Two streams save the same, which nobody else holds."""
        if self.side is None or self.side.device != x.device:
            return x
        main = torch.cuda.current_stream()
        h = x * 0.8
        a = h.sin()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            b = h.cos()
            h.record_stream(self.side)
        main.wait_stream(self.side)
        b.record_stream(main)
        return a * b

    def do_resized(self, x: torch.Tensor, turn: int) -> torch.Tensor:
        """As FSDP has it: a weight is there only while it is needed."""
        weight = torch.empty_like(x.detach())
        storage, size = weight.untyped_storage(), x.nbytes
        storage.resize_(0)

        def fill() -> None:
            with torch.autograd._unsafe_preserve_version_counter(weight):
                storage.resize_(size)
                values = numbers(size // 1024, turn, x.device)
                weight.view(-1)[: values.numel()].copy_(values)
                weight.view(-1)[values.numel() :].fill_(0.5)

        fill()
        y = (x * weight).tanh()
        if turn % 2 == 0:
            memory.rest(1000)  # what leaves has left
        storage.resize_(0)
        y.register_hook(lambda _: fill())
        return y

    def do_use(self, x: torch.Tensor, turn: int) -> torch.Tensor:
        """Saves a tensor of the program's, wherever its memory is from."""
        if not self.uses:
            return x
        used = self.uses[turn % len(self.uses)]
        rows = min(len(x), used.numel() // WIDTH)
        return x[:rows] * used[: rows * WIDTH].view(rows, WIDTH)

    def do_hop(self, x: torch.Tensor, _: int) -> torch.Tensor:
        if self.other is None:
            return x
        return (x.to(self.other).sin() * 0.9).to(x.device) * x


def reserve(m: Machine, streams: list[int], values: list[Value]) -> None:
    """Says which streams of a pass use tensors of other streams.

    Backward frees them at a time that only the allocator can know.
    """
    for value in values:
        others = [s for s in streams if s != value.pool]
        if not value.is_plain and value.pool in streams and others:
            raise Missing
        if value.is_plain and value.pool in streams:
            for s in others:
                value.tensor.record_stream(m.streams[s])


def build(m: Machine, s: int, layers: list[str], **more: Any) -> Chain:
    """A chain on the device of a stream; its parameters are made there."""
    device = m.streams[s].device
    uses, side = more.get("uses", []), more.get("side")
    hops = "hop" in layers and torch.cuda.device_count() > 1 and not m.is_inner
    other = torch.device("cuda", 1 - device.index) if hops else None
    return Chain(layers, [v.tensor for v in uses], side, device, other)


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    count = tensor.numel() // WIDTH
    return tensor.detach()[: count * WIDTH].view(count, WIDTH)


@handler
def forward(
    m: Machine, p: int, a: int, s: int, branch: int, uses: list[int], layers: list[str]
) -> None:
    m.forget_pass(p)
    there = [m.values[r] for r in dict.fromkeys([a, *uses]) if r in m.values]
    for value in there:
        value.frozen += 1
    m.passes[p] = Pass(there)
    value, used = m.get(a), [m.get(r) for r in uses]
    m.of_device(s, value, *used)
    streams = [s]
    if "branch" in layers and branch != s:
        m.of_device(branch, value)
        streams.append(branch)
    if "hop" in layers and not m.is_inner:  # the other device works on its default one
        streams += [0, FIRST_OF_OTHER]
    streams = list(dict.fromkeys(streams))
    reserve(m, streams, there)
    for other in streams[1:]:
        m.settle(other)
    with m.on(s, reads=there):
        side = m.streams[branch] if branch != s else None
        module = build(m, s, layers, uses=used, side=side)
        leaf = rows_of(value.tensor).requires_grad_()
        loss = module(leaf)
    module.uses.clear()
    leaves = [leaf, module.scale, module.matrix]
    m.passes[p] = Pass(there, loss, leaves, streams)


@handler
def backward(m: Machine, p: int, r: int, twice: bool, pause: int) -> None:
    memory.rest(pause)
    done = m.passes.get(p)
    if done is None or done.loss is None:
        raise Missing
    s = done.streams[0]
    for other in done.streams[1:]:
        m.settle(other)
    with m.on(s):
        done.loss.backward(retain_graph=twice)
        if twice:
            done.loss.backward()
        m.look("loss", done.loss)
        for name, leaf in zip("ab", done.leaves[1:], strict=True):
            if leaf.grad is not None:
                m.look(name, leaf.grad)
        gradient = done.leaves[0].grad
    m.forget_pass(p)
    if gradient is not None:
        m.put(r, s, gradient.view(-1))


@handler
def share(m: Machine, s: int, side: int, kib: int, pause: int) -> None:
    """Forward and backward at once over what two streams save, which is large."""
    stream, other = m.streams[s], m.streams[side]
    if stream.device != other.device:
        raise Missing
    m.settle(side)
    with m.on(s) as stream:
        leaf = rows_of(numbers(kib, 11, stream.device)).requires_grad_()
        module = Chain(["branch", "branch"], [], other, stream.device, None)
        loss = module(leaf)
        memory.rest(pause)
        m.settle(side)
        loss.backward()
        m.look("loss", loss)
        m.look("gradient", leaf.grad)
        del leaf, module, loss
    m.debts.setdefault(s, []).append(m.event(side))
    m.debts.setdefault(side, []).append(m.event(s))


class Scale(nn.Module):
    """Saves what it is given."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def load(m: Machine, s: int, side: int, kib: int, number: int) -> torch.Tensor:
    """Foreign memory, which its owner's stream fills after all work of another."""
    with m.on(side) as stream:
        m.settle(side, memory.FOREIGN)
        stream.wait_stream(m.streams[s])
        made = memory.foreign_tensor(stream.device, kib).fill_(number)
    m.streams[s].wait_stream(m.streams[side])
    return made


@handler
def loader(m: Machine, s: int, side: int, kib: int, count: int) -> None:
    """Batches that autograd alone keeps; the next one comes before backward."""
    if m.streams[s].device != m.streams[side].device:
        raise Missing
    with m.on(s) as stream:
        module = Scale(stream.device)
    for turn in range(count):
        batch = load(m, s, side, kib, turn + 1)
        with m.on(s):
            loss = module(batch).sum()
        del batch
        following = load(m, s, side, kib, 100)
        with m.on(s):
            loss.backward()
            m.look(f"{turn}", module.scale.grad)
            module.scale.grad = None
        del loss, following
    m.debts.setdefault(memory.FOREIGN, []).extend([m.event(s), m.event(side)])


@handler
def infer(m: Machine, r: int, a: int, s: int, layers: list[str]) -> None:
    value = m.get(a)
    m.of_device(s, value)
    with m.on(s, reads=[value]), torch.no_grad():
        module = build(m, s, [kind for kind in layers if kind != "hop"])
        x = rows_of(value.tensor)
        for turn, kind in enumerate(module.kinds):
            x = getattr(module, f"do_{kind}")(x, turn)
    m.put(r, s, x.reshape(-1) if x.data_ptr() != value.tensor.data_ptr() else x.clone())
