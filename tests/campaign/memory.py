"""Operations on memory and streams: the allocator's own, and that of others."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from typing import Any, ClassVar

import torch
from remote import sim
from support import cuda_runtime

from campaign.machine import FOREIGN, KIB, Machine, Missing, handler, synchronize
from campaign.program import FIRST_OF_OTHER

runtime = cuda_runtime()
_MEMCPY_DEFAULT = 4  # cudaMemcpyDefault: by the addresses
runtime.cudaMemcpyAsync.argtypes = [
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
]
sim.oomph_sim_launch.argtypes = [
    *(ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint64)
]


def slow_kernel(stream: torch.cuda.Stream, tensor: torch.Tensor, us: int) -> None:
    """A kernel that reads a tensor, and takes its time."""
    place, size = tensor.data_ptr(), tensor.nbytes
    with torch.cuda.device(stream.device):
        assert sim.oomph_sim_launch(stream.cuda_stream, place, size, 0, us * 1000) == 0


def rest(us: int) -> None:
    """The host does something else for a while, and the device goes on."""
    sim.oomph_sim_advance(us * 1000)


def numbers(kib: int, seed: int, device: Any) -> torch.Tensor:
    """Different ones for each seed, between 0 and 1."""
    count = kib * KIB // 4
    x = torch.arange(count, dtype=torch.float32, device=device)
    return x.mul_(0.0037 + seed % 97 / 1000).frac_()


def ours() -> Any:
    """The module oomph, if it is at work here."""
    import oomph

    return oomph if oomph.is_installed() else None


# ---- tensors


@handler
def new(m: Machine, r: int, s: int, kib: int, how: str) -> None:
    seed = r * 10 + len(m.place)
    with m.on(s) as stream:
        if how == "compute":
            made = numbers(kib, seed, stream.device)
        else:
            source = numbers(kib, seed, "cpu")
            source = source.pin_memory() if how == "pinned" else source
            made = source.to(stream.device, non_blocking=True)
    m.put(r, s, made)


MIXES = {
    "add": lambda a, b: a + b.mul(0.5),
    "mul": lambda a, b: (a * b).sin(),
    "where": lambda a, b: torch.where(a > b, a, -b),
    "cumulate": lambda a, b: a.view(-1, 4).cumsum(1).view(-1).remainder(3.0) - b,
    "sort": lambda a, b: a.view(-1, 4).sort(1).values.view(-1) * b,
    "cat": lambda a, b: torch.cat([a[: len(a) // 2], b[len(a) // 2 :].flip(0)]),
}


@handler
def mix(m: Machine, r: int, a: int, b: int, s: int, kind: str) -> None:
    first, second = m.get(a), m.get(b)
    m.of_device(s, first, second)
    count = min(first.tensor.numel(), second.tensor.numel())
    with m.on(s, reads=[first, second]):
        made = MIXES[kind](first.tensor[:count], second.tensor[:count])
    m.put(r, s, made)


WRITES = {
    "scale": lambda x: x.mul_(0.5),
    "shift": lambda x: x[1:].copy_(x[:-1].clone()),
    "part": lambda x: x[::2].fill_(0.25),
    "mask": lambda x: x.masked_fill_(x.abs() > 0.8, 0.125),
}


@handler
def write(m: Machine, r: int, s: int, kind: str) -> None:
    value = m.get(r)
    m.of_device(s, value)
    if value.frozen:
        raise Missing
    with m.on(s, writes=[value]):
        WRITES[kind](value.tensor)


@handler
def slow(m: Machine, a: int, s: int, us: int) -> None:
    """A slow kernel, on another device perhaps: that must be recorded.

    No order of streams keeps the memory from being unmapped on its own device. PyTorch
    takes the default streams of two devices for one, and records nothing.
    """
    value = m.get(a)
    if m.streams[s].device != value.tensor.device:
        if not value.is_plain or s == FIRST_OF_OTHER or s == 0:
            raise Missing
        value.tensor.record_stream(m.streams[s])
    with m.on(s, reads=[value]) as stream:
        slow_kernel(stream, value.tensor, us)


@handler
def free(m: Machine, r: int, mode: str) -> None:
    m.drop(r, mode)


@handler
def look(m: Machine, a: int, s: int) -> None:
    value = m.get(a)
    m.of_device(s, value)
    with m.on(s, reads=[value]):
        m.look("", value.tensor)


@handler
def record(m: Machine, a: int, s: int) -> None:
    value = m.get(a)
    if not value.is_plain:
        raise Missing
    value.tensor.record_stream(m.streams[s])


@handler
def resize(m: Machine, r: int, s: int, kib: int, mode: str) -> None:
    """To nothing, and then to another size, on another stream perhaps."""
    value = m.get(r)
    m.of_device(s, value)
    if value.frozen or not value.is_plain:
        raise Missing
    m.part(value, mode)
    storage = value.tensor.untyped_storage()
    storage.resize_(0)
    with m.on(s):
        storage.resize_(kib * KIB)
        value.tensor = torch.empty(0, device=value.tensor.device)
        value.tensor.set_(storage, 0, (kib * KIB // 4,))
        value.tensor.copy_(numbers(kib, kib + r, value.tensor.device))
    value.pool, value.writer, value.uses = s, s, {s: m.event(s)}


class Link:
    """Leads back to itself, so that only the collector frees what it holds."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held, self.this = held, self


@handler
def garbage(m: Machine, s: int, kib: int, count: int) -> None:
    """Leaves tensors in cycles. What a program needs natively is one of them."""
    for _ in range(count):
        with m.on(s) as stream:
            held = torch.empty(kib * KIB // 4, device=stream.device)
            held[:1000].fill_(1)
            Link(held)
            del held
        if ours() is None:
            gc.collect()


@handler
def growing(m: Machine, s: int, kib: int, by: int, count: int) -> None:
    """One tensor after the other, each too large for the memory of the last."""
    for turn in range(count):
        with m.on(s) as stream:
            made = torch.empty((kib + turn * by) * KIB // 4, device=stream.device)
            made[-1000:].fill_(turn)
            m.look(f"{turn}", made[-1000:])
            del made


# ---- streams and the whole device


@handler
def sync(m: Machine, s: int) -> None:
    synchronize() if s < 0 else m.streams[s].synchronize()


@handler
def pause(m: Machine, us: int) -> None:
    rest(us)


@handler
def empty_cache(m: Machine) -> None:
    torch.cuda.empty_cache()


@handler
def prefetch(m: Machine, count: int, side: int, main: int, kib: int, work: int) -> None:
    """A loader such as timm's: what a side stream loads is used and freed on another.

    Nothing is recorded; the side stream waits for the other before it loads again.
    """
    if m.streams[side].device != m.streams[main].device:
        raise Missing
    batch = None
    for turn in range(count + 1):
        loaded = None
        if turn < count:
            with m.on(side) as stream:
                source = numbers(kib, turn, "cpu").pin_memory()
                loaded = source.to(stream.device, non_blocking=True).mul_(0.5)
        if batch is not None:
            with m.on(main) as stream:
                saved = [batch.sin()]
                slow_kernel(stream, batch, 100)
                for _ in range(work):
                    saved.append(saved[-1] * 1.5)
                total = sum(saved[1:], batch)
                m.look(f"{turn}", total)
            del saved, total
        with torch.cuda.stream(m.streams[main]):
            m.streams[main].wait_stream(m.streams[side])
        batch = loaded
        m.debts.setdefault(side, []).append(m.event(main))


# ---- memory of others


class Owner:
    """Stands for CuPy or DALI: memory of its own, used again once it is dropped."""

    idle: ClassVar[dict[tuple[int, int], list[int]]] = {}

    def __init__(self, device: int, kib: int) -> None:
        self.kind = device, kib
        kept = self.idle.setdefault(self.kind, [])
        place = ctypes.c_uint64(kept.pop() if kept else 0)
        if not place.value:
            size = ctypes.c_size_t(kib * KIB)
            with torch.cuda.device(device):
                assert runtime.cudaMalloc(ctypes.byref(place), size) == 0
        self.place = place.value
        self.__cuda_array_interface__ = {
            "shape": (kib * KIB // 4,),
            "typestr": "<f4",
            "data": (self.place, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self.idle[self.kind].append(self.place)


def foreign_tensor(device: torch.device, kib: int) -> torch.Tensor:
    return torch.as_tensor(Owner(device.index, kib), device=device)


@handler
def foreign(m: Machine, r: int, s: int, kib: int) -> None:
    m.drop(r, "later")
    with m.on(s) as stream:
        m.settle(s, FOREIGN)
        made = foreign_tensor(stream.device, kib)
        made.copy_(numbers(kib, 7 * r + 3 * s, stream.device))
    m.put(r, s, made, pool=FOREIGN, is_plain=False)


@handler
def alias(m: Machine, a: int) -> None:
    """The tensor goes through DLPack, and is another storage afterwards."""
    value = m.get(a)
    if value.frozen:
        raise Missing
    value.tensor = torch.from_dlpack(torch.to_dlpack(value.tensor))
    value.is_plain = False


@handler
def pooled(m: Machine, r: int, s: int, kib: int, pool: int) -> None:
    """Memory of a MemPool."""
    with m.on(s) as stream:
        key = pool, stream.device.index  # a pool is of the device it was made on
        if key not in m.pools:
            m.pools[key] = torch.cuda.MemPool()
        kept = m.pools[key]
        with torch.cuda.use_mem_pool(kept, stream.device):
            made = torch.empty(kib * KIB // 4, device=stream.device)
        made.copy_(numbers(kib, 3 * r, stream.device))
    m.put(r, s, made)


# ---- other devices, and oomph


@handler
def peer(m: Machine, r: int, a: int, s: int, to: int) -> None:
    value, target = m.get(a), m.streams[to].device
    m.of_device(s, value)
    if target == value.tensor.device:
        raise Missing
    m.settle(to)
    with torch.cuda.stream(m.streams[to]), m.on(s, reads=[value]):
        made = value.tensor.to(target, non_blocking=True)
    m.put(r, to, made)


@handler
def lend(m: Machine, s: int, side: int, kib: int, us: int) -> None:
    """Another device's stream reads late; the memory is freed at once, and wanted."""
    if m.streams[s].device == m.streams[side].device:
        raise Missing
    m.settle(side)
    with m.on(s) as stream:
        lent = numbers(kib, 17, stream.device)
    with m.on(side) as reader:
        got = torch.empty_like(lent, device=reader.device)
        reader.wait_stream(stream)
        lent.record_stream(reader)
        slow_kernel(reader, lent, us)
        copy = got.data_ptr(), lent.data_ptr(), lent.nbytes, _MEMCPY_DEFAULT
        assert runtime.cudaMemcpyAsync(*copy, reader.cuda_stream) == 0
    del lent
    with m.on(s) as stream:
        m.look("after", numbers(kib, 19, stream.device))
    with m.on(side):
        m.look("lent", got)


def can_move(oomph: Any) -> bool:
    """Whether tensors can move to the host: not into page-locked blocks."""
    pages = oomph.base.state.settings()["host_pages"]
    return pages != "pinned" and oomph.stats()["host_limit_bytes"] > 0


@handler
def move(m: Machine, rs: list[int], how: str) -> None:
    oomph = ours()
    if oomph is not None and not can_move(oomph):
        return
    values = [m.values[r] for r in sorted({*rs}) if r in m.values]
    tensors = [v.tensor for v in values if v.is_plain]
    if oomph is not None and tensors:
        with contextlib.suppress(ValueError):  # one that is small, or of a graph
            getattr(oomph, how)(tensors)


@handler
def step(m: Machine) -> None:
    oomph = ours()
    if oomph is not None:
        oomph.step()


def have_peers() -> None:
    """Lets either device use what the other has."""
    if torch.cuda.device_count() > 1:
        a = torch.zeros(1, device="cuda:0")
        b = torch.zeros(1, device="cuda:1")
        a.copy_(b)
        b.copy_(a)
        synchronize()
