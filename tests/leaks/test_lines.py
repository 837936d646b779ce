"""The line that keeps the memory, by what is seen to grow: shapes of programs."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import ctypes
import functools
import gc
import io
import itertools
import math
import pickle
import queue
import re
import sys
import threading
import weakref
from collections import Counter, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
import torch
from support import MIB, Simulated

simulated = Simulated("2GiB,context=0", "offload:off")

KEEPS = "  # keeps"
EXIT: list[Any] = []  # what takes functions back that were to run at exit
HOOKS: list[Any] = []  # the handles of tensors' hooks
WAITING: list[queue.SimpleQueue[None]] = []  # what threads wait for
FITS: weakref.WeakSet[Any] = weakref.WeakSet()
LENT: list[int] = []  # the identities of what C holds
SPANS: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("SPANS")


def block(kib: int = 512) -> torch.Tensor:
    return torch.zeros(kib << 8, device="cuda")


class Loop:
    """A training loop, step by step, which calls a model now and then."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(64, 64).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(8, 64, device="cuda")).sum().backward()
        self.optimizer.step()


class Example:
    """What can be pickled."""

    def __init__(self, board):
        self.board = board

    def __reduce__(self):
        return Example, (str(self.board.shape),)


# ---- Programs that leak: each gives a function that is called with each step's number


def two_lists():
    """Layers have lists of their own, which one method fills, in every third step."""
    lists = [[], []]

    def fill(which):
        which.append(block())  # keeps

    return lambda step: [fill(each) for each in lists if step % 3 == 0]


def finalizers():
    """A registry of the library's is filled by the line that calls it."""

    class Session:
        def __init__(self):
            self.caches = [block(), block()]
            weakref.finalize(self, self.close)  # keeps

        def close(self):
            self.caches = []

    def serve(step):
        session = Session()
        return session.caches[step % 2].shape

    return serve


def context_variable():
    """A tuple in a context variable is replaced by a longer one."""
    SPANS.set(())

    def trace(step):
        SPANS.set((*SPANS.get(), {"step": step, "value": block()}))  # keeps

    return trace


def bounded_parts():
    """What is kept has a ring of its own, which fills and stays."""

    class Track:
        def __init__(self):
            self.features = deque(maxlen=4)

    removed, live = [], []

    def update(step):
        if step % 6 == 0:
            removed.extend(live)  # keeps
            live[:] = [Track()]
        live[0].features.append(block())

    return update


def adapters():
    """Deep within a model modules get one attribute more each time."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base = torch.nn.Linear(8, 8)

        def add(self, name):
            setattr(self, name, torch.nn.Linear(256, 512, device="cuda"))  # keeps

    def nested(depth):
        return torch.nn.Sequential(nested(depth - 1) if depth else Layer())

    model = nested(6)
    layer = next(m for m in model.modules() if isinstance(m, Layer))
    return lambda step, model=model: layer.add(f"adapter_{step}")


def linked():
    """The last one has the one before, and so on."""

    class Frame:
        def __init__(self, before):
            self.before, self.image = before, block()

    class Map:
        last: Frame | None = None

        def insert(self):
            self.last = Frame(self.last)  # keeps

    map = Map()
    return lambda step: map.insert()


def generators():
    """Suspended generators hold what they have computed so far."""

    def stream():
        past = block()
        while True:
            yield past.shape
            past = past + 1

    requests = {}

    def start(step):
        requests[step] = stream()  # keeps
        for _ in range(3):
            next(requests[step])

    return start


def bounded_cache():
    """A cache that is full after 500 calls holds a model for each."""

    @functools.lru_cache(maxsize=500)  # keeps
    def parameters(key):
        return {"weight": block(), "bias": block(4)}

    return lambda step: parameters(step)


def parameter_groups():
    """An optimizer gets one more group for each frame; its state goes with that."""
    optimizer = torch.optim.Adam([torch.nn.Parameter(block(4))])

    def track(step):
        exposure = torch.nn.Parameter(block())
        optimizer.add_param_group({"params": [exposure]})  # keeps
        exposure.square().sum().backward()
        optimizer.step()

    return track


def tables_of_objects():
    """NumPy holds objects that Python's collector does not know of."""
    rows = numpy.empty(0, dtype=object)

    def add(step):
        nonlocal rows
        rows = numpy.append(rows, [{"image": block()}])  # keeps

    return add


def lines_of_a_table():
    """An array of objects that was as long from the beginning."""
    rows = numpy.empty((1000, 2), dtype=object)

    def add(step):
        rows[step, 0] = numpy.zeros(3)
        rows[step, 1] = block()  # keeps

    return add


def joined_by_a_library():
    """A library's object joins what it is given with what it has."""
    from transformers import DynamicCache

    class Service:
        def __init__(self):
            self.prefix = DynamicCache()

        def answer(self):
            keys = torch.zeros(1, 2, 64, 512, device="cuda")
            both = self.prefix.update(keys, keys.clone(), 0)  # keeps
            return both[0].shape

    service = Service()
    return lambda step: service.answer()


def lagging_branch():
    """What one branch of a split stream has read waits for the other."""

    def stream():
        while True:
            yield block()

    train, stats = itertools.tee(stream())  # keeps
    next(stats)
    return lambda step: next(train if step else stats).shape


def many_lines():
    """A round has more lines than are looked at in one."""
    done = {}

    def transcribe(step):
        frames = block()
        letters = 0
        for _ in range(5_000):
            letters += 1
        done[step] = frames  # keeps
        return letters

    return transcribe


def worker_of_a_pool():
    """A thread that lives as long as the program fills a list; this one waits."""
    pool, kept = ThreadPoolExecutor(1), []

    def restore(images):  # which nobody calls
        kept.extend(images)

    def store(into, image):
        into.append(image)  # keeps

    def render(step):
        image = block()
        letters = step
        store(kept, image)
        letters += len(kept)
        return letters

    return lambda step: pool.submit(render, step).result()


def thread_of_its_own():
    """Each step has its own thread, which keeps what it made in an object."""

    class History:
        def __init__(self):
            self.entries = {}

        def load(self, saved):  # which nobody calls
            self.entries[0] = saved

        def note(self, key, value):
            self.entries[key] = value  # keeps

    history = History()

    def handle(step):
        value = block()
        history.note(step, value)

    def serve(step):
        thread = threading.Thread(target=handle, args=(step,))
        thread.start()
        thread.join()

    return serve


def hook_in_backward():
    """A tensor's hook, which autograd's thread calls, keeps gradients."""
    weight, seen = torch.nn.Parameter(block()), deque()

    def prepend(gradient):  # which nobody calls
        seen.append(gradient)

    def remember(gradient):
        clipped = gradient.clamp(-1, 1)
        seen.append(clipped)  # keeps
        return clipped

    weight.register_hook(remember)
    return lambda step: weight.square().sum().backward()


def states_made_anew():
    """Each step makes the states of all that ever were anew, around their memory."""

    class Neuron:
        instances: ClassVar[list[Any]] = []

        def __init__(self):
            self.potential = block()
            Neuron.instances.append(self)  # keeps

    def trial(step):
        Neuron()
        for neuron in Neuron.instances:
            neuron.potential = neuron.potential.detach()

    return trial


def table_that_is_written_to():
    """A library makes a table longer, whose new rows are written then."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=256, n_embd=512, n_layer=1, n_head=2)
    model = GPT2Model(config).cuda()

    @torch.no_grad()
    def add(step):
        model.resize_token_embeddings(512 + 256 * step, mean_resizing=False)  # keeps
        rows = model.get_input_embeddings().weight
        rows[256 + 256 * step :] = 1.0
        return rows.shape

    return add


def last_ones_apart():
    """What leads to the last ones is shorter than what leads to all of them."""

    class Log:
        def __init__(self):
            self.parts = ([],)

        def add(self, value):
            self.parts[0].append(value)  # keeps

    log, recent = Log(), ()

    def note(step):
        nonlocal recent
        log.add([block()])
        if step % 20 == 19:
            recent = tuple(log.parts[0][-32:])

    return note


def graphs_of_copies():
    """What is kept is on the CPU, but its graph holds what is on the GPU."""
    weight, parts = torch.nn.Parameter(block()), {}

    def put(step):
        parts[step] = (weight * weight).square().mean().cpu()  # keeps

    return put


def sparse_sum():
    """A sparse tensor is replaced by its sum with another one."""

    class Counter:
        def __init__(self):
            self.counts = torch.sparse_coo_tensor(size=(1 << 20, 4), device="cuda")

        def add(self, step):
            rows = torch.arange(4096, device="cuda")[None] + 4096 * step
            more = torch.sparse_coo_tensor(rows, block(64).view(4096, 4), (1 << 20, 4))
            self.counts = self.counts + more  # keeps

    return Counter().add


def memo_of_a_pickler():
    """An object in C holds what it was given, and has no items that one could list."""

    class Archive:
        def __init__(self):
            self.pickler = pickle.Pickler(io.BytesIO())

        def save(self, example):
            self.pickler.dump(example)  # keeps

    archive = Archive()
    return lambda step: archive.save(Example(block()))


def moved_in_place():
    """Each step puts another object's tensors on the GPU, where they stay."""
    from transformers import BatchEncoding

    batches = []
    for _ in range(40):
        x = torch.zeros(256, 512)
        batches.append(BatchEncoding({"x": x}))

    def step(number):
        batch = batches[number].to("cuda")  # keeps
        return batch["x"].shape

    return step


def lists_by_key():
    """A list comes with the first look at its key, and is filled elsewhere."""

    class Pool:
        def __init__(self):
            self.free = defaultdict(list)

        def take(self, size):
            found = self.free[size]
            return found.pop() if found else torch.empty(size << 10, device="cuda")

        def give(self, buffer):
            found = self.free[len(buffer) >> 10]
            found.append(buffer)  # keeps

    pool = Pool()
    return lambda step: pool.give(pool.take(256 + step))


def named_before_filled():
    """A request takes its place in a cache first, and fills it some calls later."""

    class Server:
        def __init__(self):
            self.caches = {}

        def begin(self, name):
            self.caches[name] = None

        def answer(self, name):
            old = self.caches[name]
            new = block() if old is None else old + 1
            self.caches[name] = new  # keeps
            return new.shape

    server = Server()

    def step(number):
        if number % 3 == 0:
            server.begin(f"request {number // 3}")
        elif number % 3 == 2:
            server.answer(f"request {number // 3}")

    return step


def keys_of_a_set():
    """A dict is an ordered set of objects: nothing ever fills their places."""
    seen = {}

    class Frame:
        def __init__(self):
            self.pixels = block()

    def step(number):
        seen[Frame()] = None  # keeps

    return step


def classes_of_calls():
    """A class that a call has made uses what the call had, and is a key of a cache."""

    @functools.cache  # keeps
    def described(kind):
        return kind.__name__

    def solve(step):
        matrix = block()

        class Adjoint:
            def apply(self, x):
                return matrix * x

        return described(Adjoint)

    return solve


def exit_functions():
    """The interpreter's own list of functions, with their arguments, is in C."""

    def write(part):
        return part.shape

    def keep(step):
        part = block()
        part.add_(1.0)
        EXIT.append(functools.partial(atexit.unregister, write))
        atexit.register(write, part)  # keeps

    return keep


def graph_hooks():
    """A function that a node of a graph has holds the object which has the graph."""

    class Fit:
        def __init__(self):
            weight = torch.ones(256, 512, device="cuda", requires_grad=True)
            self.cached = weight * 2
            self.cached.grad_fn.register_hook(self.clear)  # keeps
            FITS.add(self)

        def clear(self, *_):
            self.cached = None

    return lambda step: Fit()


def counted_in_c():
    """Code in C takes a reference, and never gives it back."""

    def lend(parts):
        for part in parts:
            assert part.numel()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))  # keeps
            LENT.append(id(part))

    return lambda step: lend([block()])


def waiting_threads():
    """Each worker is replaced by another, and waits for what never comes."""

    def serve(inbox, ready):
        table = block()
        ready.set()
        inbox.get()  # keeps
        return table

    def replace(_):
        ready, inbox = threading.Event(), queue.SimpleQueue()
        threading.Thread(target=serve, args=(inbox, ready), daemon=True).start()
        ready.wait()
        WAITING.append(inbox)

    return replace


def own_hook():
    """A tensor's hook uses the tensor: its graph, in C++, closes the circle."""

    def weighted(x):
        def scale(grad):
            return grad * x.detach()

        handle = x.register_hook(scale)  # keeps
        HOOKS.append(handle)
        return x

    weight = torch.ones(1, device="cuda", requires_grad=True)
    return lambda step: (weighted(block() * weight).square().sum().backward())


def unnamed_hook():
    """The same by a lambda, which has no name that anything could use."""

    def weighted(x):
        scores = x.softmax(-1)
        HOOKS.append(
            scores.register_hook(lambda grad: grad * scores.detach())  # keeps
        )
        return scores

    weight = torch.ones(1, device="cuda", requires_grad=True)
    return lambda step: (weighted(block() * weight).square().sum().backward())


def other_holder():
    """What stayed first stays in a place of one item, what stays later elsewhere."""
    latest, late = [None], []

    def receive(step):
        frame = block()
        if step < 3:
            latest[0] = frame
        elif step % 2:
            late.append(frame)  # keeps

    return receive


def raised_again():
    """One exception, whose traceback gets longer."""
    too_short = ValueError("too short")

    def cut(frame):
        part = frame[1:] * 2
        if part.numel() > 1:
            raise too_short  # keeps

    def skip(_):
        with contextlib.suppress(ValueError):
            cut(block())

    return skip


def abandoned_queues():
    """Threads that wait until somebody takes what they have: few, then ever more."""

    def fill(frames, taken):
        for _ in range(3):
            frames.put(block())
        taken.get()  # keeps

    def begin(step):
        if step % 4 == 0:
            frames, taken = queue.Queue(), queue.SimpleQueue()
            threading.Thread(target=fill, args=(frames, taken), daemon=True).start()
            frames.get()
            WAITING.append(taken)

    return begin


LEAKS = {
    "raised_again": 20,
    "abandoned_queues": 100,
    "states_made_anew": 20,
    "table_that_is_written_to": 40,
    "last_ones_apart": 66,
    "waiting_threads": 60,
    "own_hook": 12,
    "unnamed_hook": 12,
    "other_holder": 100,
    "graphs_of_copies": 12,
    "moved_in_place": 30,
    "sparse_sum": 12,
    "memo_of_a_pickler": 12,
    "worker_of_a_pool": 12,
    "thread_of_its_own": 12,
    "hook_in_backward": 12,
    "two_lists": 40,
    "finalizers": 12,
    "context_variable": 12,
    "bounded_parts": 40,
    "adapters": 12,
    "linked": 40,
    "generators": 30,
    "bounded_cache": 160,
    "parameter_groups": 12,
    "tables_of_objects": 12,
    "lines_of_a_table": 40,
    "joined_by_a_library": 20,
    "lagging_branch": 12,
    "many_lines": 20,
    "lists_by_key": 60,
    "classes_of_calls": 12,
    "exit_functions": 30,
    "graph_hooks": 30,
    "counted_in_c": 60,
    "named_before_filled": 60,
    "keys_of_a_set": 12,
}
"""The programs, and how many steps they run."""


def watched(program: str, steps: int, every: int = 1) -> list[Any]:
    """What is reported at the end, and each time after so many steps."""
    import oomph

    gc.unfreeze()  # what the process had before is seen as a holder, too
    loop, reported = Loop(), []
    with oomph.leaks.watch() as watch:
        leak = globals()[program]()
        for step in range(steps):
            leak(step)
            loop.step()
            if step % every == 0:
                reported += watch.findings
    SPANS.set(())
    while EXIT:
        EXIT.pop()()
    while HOOKS:
        HOOKS.pop().remove()
    while WAITING:
        WAITING.pop().put(None)
    while FITS:
        FITS.pop().clear()
    while LENT:
        ctypes.pythonapi.Py_DecRef(ctypes.cast(LENT.pop(), ctypes.py_object))
    for finalizer in list(weakref.finalize._registry):
        alive = finalizer.peek()
        if alive is not None and type(alive[0]).__module__ == __name__:
            finalizer.detach()
    return [*reported, *watch.findings]


def rows():
    """Each keeps its whole batch."""
    kept: dict[int, Any] = {}

    def add(step):
        kept[step] = block()[:16]  # keeps

    return add


def two_readers():
    """One is ahead of the other."""
    readers = itertools.tee(block() for _ in itertools.count())

    def read(step):
        next(readers[0])  # keeps

    return read


ADVICE = {
    "parameter_groups": "make it once",
    "rows": "a view that keeps all 512.00 KiB",
    "two_readers": "itertools.tee()",
    "linked": "let go of what is no longer used",
}


@pytest.mark.parametrize("program", ADVICE)
@simulated
def test_the_advice_fits_what_is_kept(program):
    assert ADVICE[program] in watched(program, 66)[-1].text


@pytest.mark.parametrize("program", LEAKS)
@simulated
def test_the_line_that_keeps_it_is_reported(program):
    steps = LEAKS[program]
    source = Path(__file__).read_text().splitlines()
    found = watched(program, steps, steps)
    assert len(found) == 1, found
    line = source[found[0].line.line - 1]
    assert line.endswith(KEEPS), line
    start = globals()[program].__code__.co_firstlineno
    assert start < found[0].line.line


@simulated
def test_where_the_function_that_keeps_it_was_called_is_reported():
    """If that was in the step; who runs all the steps is of no interest."""
    import oomph

    source, loop, own = Path(__file__).read_text().splitlines(), Loop(), []
    makers: list[Any] = []

    def register(maker):
        makers.append(maker)  # keeps

    def choose():
        chosen = block()
        register(lambda: chosen)  # calls

    with oomph.leaks.watch() as watch:
        for _ in range(12):
            choose()
            own.append(block(64).view(256, 64))  # keeps
            loop.step()
    lines = {source[found.line.line - 1]: found for found in watch.findings}
    helper = next(found for line, found in lines.items() if "makers" in line)
    assert source[helper.called_at.line - 1].endswith("# calls")
    assert f"called at tests/leaks/test_lines.py:{helper.called_at.line}" in helper.text
    (direct,) = (found for line, found in lines.items() if "own" in line)
    assert direct.called_at is None


@pytest.mark.long
@simulated
def test_a_call_that_goes_on_is_reported_as_the_holder_of_what_it_collects():
    import oomph

    gc.unfreeze()  # or it is not known what came last
    model = torch.nn.Linear(64, 64).cuda()

    @torch.no_grad()
    def stream():
        for _ in range(90):
            yield model(torch.ones(256, 64, device="cuda"))

    with oomph.leaks.watch() as watch:
        results = list(stream())  # keeps
    found = watch.findings
    source = Path(__file__).read_text().splitlines()
    lines = [source[finding.line.line - 1].strip() for finding in found]
    assert lines == ["results = list(stream())" + KEEPS], found
    assert "a list, which a call that goes on" in found[0].held_by
    del results


@simulated
def test_what_is_computed_from_a_state_that_is_carried_is_no_finding_of_its_own():
    import oomph

    gc.unfreeze()
    cell = torch.nn.GRUCell(64, 64).cuda()
    readout = torch.nn.Linear(64, 1).cuda()
    recurrent = {"hidden": torch.zeros(256, 64, device="cuda")}
    with oomph.leaks.watch() as watch:
        for _ in range(90):
            score = recurrent["hidden"].tanh()  # is not carried
            recurrent["hidden"] = cell(score.detach(), recurrent["hidden"])  # keeps
            readout(score.detach())
    found = watch.findings
    assert [finding.verdict for finding in found] == ["graph retained"], found
    source = Path(__file__).read_text().splitlines()
    assert source[found[0].line.line - 1].endswith(KEEPS)


@simulated
def test_a_state_that_is_carried_between_calls_is_told_where_it_is_bound():
    import oomph

    class Service:
        def __init__(self):
            self.cell = torch.nn.GRUCell(64, 64).cuda()
            self.state = torch.zeros(256, 64, device="cuda")

        def push(self, chunk):
            state = self.cell(chunk, self.state)
            self.state = state  # keeps
            return state.shape

    service = Service()
    with oomph.leaks.watch() as watch:
        for _ in range(90):
            service.push(torch.ones(256, 64, device="cuda"))
    found = watch.findings
    assert [finding.verdict for finding in found] == ["graph retained"], found
    (finding,) = found
    source = Path(__file__).read_text().splitlines()
    assert source[finding.line.line - 1].endswith(KEEPS)


@simulated
def test_a_thread_that_does_not_come_back_stops_nobody():
    """It may run a finalizer, which waits for what this one has."""
    from oomph.leaks.lines.following import Follower
    from oomph.leaks.lines.slots import Slot

    class Taken:
        """A lock that another thread has for good."""

        def __init__(self):
            self.waits = []

        def acquire(self, timeout=math.inf):
            self.waits.append(timeout)
            return False

    kept: list[int] = []
    follower = Follower([Slot(kept)], 0)
    assert follower.start()
    follower._lock = taken = Taken()
    for i in range(100):
        kept.append(i)
    assert follower.stop() == {}
    # The first line alone, and the end.
    assert len(taken.waits) == 2 and max(taken.waits) < math.inf
    assert sys.gettrace() is None


# ---- Programs that look like it


def finite_keys():
    """A cache without a bound, whose keys are used up ever more slowly."""

    @functools.cache
    def basis(key):
        return block()

    return lambda step: basis(int(16 * (1 - 0.97**step)))


def stairs():
    """A table for each stair of a schedule, which ends between two looks."""

    class Tables(dict):
        def __missing__(self, stair):
            self[stair] = table = block()
            return table

    tables = Tables()
    return lambda step: tables[min(step // 4, 22), step % 2]


def collected_cycles():
    """Garbage that the program has collected now and then."""
    gc.disable()

    class Node:
        def __init__(self):
            self.value, self.itself = block(), self

    def parse(step):
        Node()
        if step % 10 == 9:
            gc.collect()

    return parse


@pytest.mark.long
@pytest.mark.parametrize("program", ["finite_keys", "stairs", "collected_cycles"])
@simulated
def test_what_comes_to_its_bound_is_never_called_a_leak(program):
    try:
        found = watched(program, 150, every=10)
    finally:
        gc.enable()
    assert [f for f in found if f.certainty == "leaks"] == []


@simulated
def test_a_chain_that_is_copied_whole_is_reported_though_nothing_in_it_grows_old():
    import oomph

    gc.unfreeze()
    chain: list[torch.Tensor] = []
    loop = Loop()
    with oomph.leaks.watch() as watch:
        for number in range(120):
            loop.step()
            if number % 4 == 3:  # each is smaller than those whose lines are known
                sizes = [25 << 10] * (len(chain) + 2)
                chain = [torch.zeros(n, device="cuda") for n in sizes]  # copies
    (found,) = watch.final_report().findings
    source = Path(__file__).read_text().splitlines()
    lines = {source[line.line - 1].strip() for line in found.allocated_at}
    assert any(line.endswith("# copies") for line in lines), found
    assert found.growth_bytes == pytest.approx(50 << 10, rel=0.3)


# ---- Programs without steps


SOLVED_PER_S = 200


@contextlib.contextmanager
def watch_by_virtual_time():
    """A watch for leaks, whose clock has the time that the program says."""
    import oomph
    from oomph.leaks import clock, watching

    class Virtual(clock.Clock):
        """Its thread waits for :meth:`pass_round`, which waits for what it does."""

        def __init__(self, tick):
            super().__init__(tick)
            self.now_s = self._began = 0.0
            self._is_round, self._was_round = threading.Event(), threading.Event()

        @property
        def seconds(self):
            return self.now_s - self._began

        def begin_again(self):
            self._began = self.now_s
            self._ends.clear()

        def stop(self):
            self._stopped.set()
            self._is_round.set()
            super().stop()

        def pass_round(self):
            self.now_s += self._pause_s()
            self._was_round.clear()
            self._is_round.set()
            self._was_round.wait()

        def _run(self):
            goes_on = True
            while self._is_round.wait() and not self._stopped.is_set():
                self._is_round.clear()
                if goes_on:
                    self._ends.append(self.seconds)
                    goes_on = self._tick()
                self._was_round.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "Clock", Virtual)
        with oomph.leaks.watch() as watch:
            yield watch


def solve_often(keep, watch, seconds: float = 4.0) -> None:
    """What has neither a model nor gradients, until the time is over."""
    clock = watch._clock
    end_s = clock.now_s + seconds
    solved = 0
    while clock.now_s < end_s:
        while solved < clock.now_s * SOLVED_PER_S:
            matrix = torch.ones(64, 64, device="cuda")
            keep(matrix @ matrix)
            solved += 1
        clock.pass_round()


@simulated
def test_without_a_model_what_grows_is_seen_over_time():
    gc.unfreeze()
    results: list[torch.Tensor] = []

    def keep(result):
        results.append(block() + result.sum())  # keeps

    with watch_by_virtual_time() as watch:
        solve_often(keep, watch)
        report = watch.report()
    assert report.steps == 0
    (found,) = report.findings
    source = Path(__file__).read_text().splitlines()
    assert source[found.line.line - 1].endswith(KEEPS), found
    assert found.per == "second"
    assert re.fullmatch(r"(?s)\w.* in 4\.\d seconds:.* MiB per second.*", report.text)
    assert found.growth_bytes == pytest.approx(SOLVED_PER_S * MIB / 2, rel=0.1)


@simulated
def test_a_program_of_a_second_is_long_enough():
    gc.unfreeze()
    results: list[torch.Tensor] = []

    def keep(result):
        results.append(block() + result.sum())  # keeps

    with watch_by_virtual_time() as watch:
        solve_often(keep, watch, 1.0)
    report = watch.final_report()
    (found,) = report.findings
    source = Path(__file__).read_text().splitlines()
    assert source[found.line.line - 1].endswith(KEEPS), found
    assert re.search(r" in \d\.\d seconds:", report.text)


@simulated
def test_what_ends_before_the_first_call_of_a_model_is_not_told():
    """Such as loading data."""
    gc.unfreeze()
    data: list[torch.Tensor] = []
    with watch_by_virtual_time() as watch:
        solve_often(lambda _: data.append(block()), watch, 1.0)
        loop = Loop()
        for _ in range(12):
            loop.step()
        assert watch.findings == []
    assert "oomph leaks" not in {thread.name for thread in threading.enumerate()}


def test_the_line_that_fills_a_container_stands_where_a_name_is_bound_beside():
    from oomph.holders.lines import Line
    from oomph.leaks.findings import Finding
    from oomph.leaks.lines.following import Changes
    from oomph.leaks.lines.places import Places
    from oomph.leaks.lines.slots import Slot
    from oomph.leaks.suspects import Suspect

    fills, binds = Line("program.py", 50, "update"), Line("program.py", 104, "step")
    kept, tracker = Slot([], name="kept"), Slot({"tracks": ()}, "tracks", "tracks")
    suspect = Suspect(Finding("outputs retained", None), {1}, began=1, seen=2)
    suspect.places = Places([kept], [tracker])
    suspect.learn({kept.place: Changes(Counter({(True, fills): 1}), size_change=1)})
    assert suspect.finding.line == fills
    history = Slot(deque(maxlen=4), name="history")
    for _ in range(2):  # a member is found there, and again
        suspect.held_now(Places([history], [tracker]), "`.history`")
        suspect.learn({tracker.place: Changes(Counter({(True, binds): 1}))})
    suspect.suppose()  # nothing more was seen
    assert suspect.finding.line == fills
    assert not suspect.is_searched
