"""Which line a block is said to come from."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import sys
import threading

import pytest
import torch
from support import MIB, Simulated, run
from torch import nn
from torch.utils.checkpoint import checkpoint

card = Simulated("2GiB,context=0,memory=real", "offload:off")


def take(mib: int = 4) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


TAKE_LINE = take.__code__.co_firstlineno + 1


def site_of(tensor: torch.Tensor):
    from oomph import _C
    from oomph.memory import sites

    return sites.resolve(_C.site_of(tensor.data_ptr()))


def line() -> int:
    """The line that calls."""
    return sys._getframe(1).f_lineno


def at(site) -> tuple[int, bool]:
    """The line of a site of this file, and whether it is inferred."""
    assert site is not None
    assert site.file == __file__
    return site.line, site.inferred


@card
def test_what_a_line_held_at_the_peak_is_known_until_the_peak_is_reset():
    from oomph.memory import sites

    def at_peak():
        found = ((sites.resolve(h.site), h.size_bytes // MIB) for h in sites.at_peak(0))
        return {site.function: mib for site, mib in found}

    kept = take(8)
    torch.cuda.reset_peak_memory_stats()
    take(64)
    take(16)
    assert at_peak()["take"] == 72
    torch.cuda.reset_peak_memory_stats()
    assert at_peak()["take"] == 8
    del kept


# ---- Python's frames


@card
def test_a_block_knows_the_line_and_function_that_asked_for_it():
    site = site_of(take())
    assert (site.file, site.line, site.function) == (__file__, TAKE_LINE, "take")
    assert not site.inferred


@card
def test_the_innermost_function_of_the_user_counts():
    def outer():
        return inner()

    def inner():
        return torch.zeros(MIB, device="cuda"), line()

    block, expected = outer()
    assert at(site_of(block)) == (expected, False)
    assert site_of(block).function.endswith("inner")


@card
def test_code_of_pytorch_is_passed_over():
    layer = nn.Linear(1024, 1024, device="cuda")
    x = torch.ones(1024, 1024, device="cuda")
    with torch.no_grad():
        out, expected = layer(x), line()
    assert at(site_of(out)) == (expected, False)


@card
def test_code_of_the_standard_library_is_passed_over():
    import functools

    out, expected = functools.partial(torch.zeros, MIB, device="cuda")(), line()
    assert at(site_of(out)) == (expected, False)
    out = next(map(lambda n: torch.zeros(n, device="cuda"), [MIB]))  # noqa: C417
    assert at(site_of(out)) == (expected + 2, False)


@card
def test_a_small_block_has_no_site():
    assert site_of(torch.empty(MIB - 512, dtype=torch.uint8, device="cuda")) is None
    assert site_of(take(1)) is not None


def test_without_code_of_the_user_the_innermost_line_of_any_counts():
    code = """
    import os, sys, tempfile
    folder = tempfile.mkdtemp() + "/site-packages"
    os.mkdir(folder)
    library = "import torch\\nf = lambda: torch.empty(1 << 20, device='cuda')\\n"
    open(folder + "/library.py", "w").write(library)
    sys.path.insert(0, folder)
    import library, _thread, time
    from oomph import _C
    from oomph.memory import sites
    library.kept = library.f()
    _thread.start_new_thread(exec, (compile(
        "library.other = library.f(); library.done = True",
        folder + "/x.py", "exec"), globals()))
    while not hasattr(library, "done"):
        time.sleep(0.01)
    for block in library.kept, library.other:
        site = sites.resolve(_C.site_of(block.data_ptr()))
        print(site.file.rpartition("/")[2], site.line, site.function)
    """
    result = run(code, card="1GiB,context=0", conf="offload:off")
    assert result.out.splitlines() == ["<string> 11 <module>", "library.py 2 <lambda>"]


@pytest.mark.long
def test_a_folder_that_packages_were_installed_into_is_not_the_users(tmp_path):
    """As `pip install --target` does; PYTHONPATH leads to it."""
    code = """
    import os, torch, library
    from oomph import _C
    from oomph.memory import sites
    block = library.f()
    site = sites.resolve(_C.site_of(block.data_ptr()))
    print(site.file, site.line, sites.is_user(library.__file__))
    """
    library = "import torch\nf = lambda: torch.empty(1 << 20, device='cuda')\n"
    (tmp_path / "library.py").write_text(library)
    options = {
        "card": "1GiB,context=0",
        "conf": "offload:off",
        "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path)),
        "anew": True,
    }
    result = run(code, **options)
    assert result.out.splitlines() == [f"{tmp_path}/library.py 2 True"]
    (tmp_path / "library-1.0.dist-info").mkdir()
    result = run(code, **options)
    assert result.out.splitlines() == ["<string> 5 False"]


@card
def test_a_line_outlives_its_code():
    blocks = []
    for i in range(3):
        scope = {"torch": torch, "MIB": MIB}
        source = "\n" * i + "f = lambda: torch.empty(MIB, device='cuda')\nx = f()"
        exec(compile(source, f"<cell {i}>", "exec"), scope)
        blocks.append(scope.pop("x"))
        del scope
        gc.collect()
    sites = [site_of(block) for block in blocks]
    assert [site.file for site in sites] == ["<cell 0>", "<cell 1>", "<cell 2>"]
    assert [site.line for site in sites] == [1, 2, 3]
    assert {site.function for site in sites} == {"<lambda>"}


@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="AddressSanitizer keeps what was freed from being given out again",
)
@card
def test_code_at_the_address_of_freed_code_is_not_taken_for_it():
    addresses, wrong = set(), []
    for i in range(200):
        scope = {"torch": torch, "MIB": MIB}
        exec("\n" * i + "def f(): return torch.empty(MIB, device='cuda')", scope)
        addresses.add(id(scope["f"].__code__))
        if site_of(scope["f"]()).line != i + 1:
            wrong.append(i)
        scope.clear()  # the function and its globals hold each other
    assert len(addresses) < 200, "no address was used again: nothing was tried"
    assert wrong == []


@card
def test_equal_code_compiled_again_is_the_same_site():
    from oomph import _C

    numbers = set()
    for _ in range(5):
        scope = {"torch": torch, "MIB": MIB}
        exec("x = torch.empty(MIB, device='cuda')", scope)
        numbers.add(_C.site_of(scope["x"].data_ptr()))
    assert len(numbers) == 1


@card
def test_a_file_with_another_alphabet_is_named_as_it_is():
    scope = {"torch": torch, "MIB": MIB}
    name = "/tmp/обучение/学習-é-\U0001f525.py"
    exec(compile("x = torch.empty(MIB, device='cuda')", name, "exec"), scope)
    assert site_of(scope["x"]).file == name


@card
def test_each_thread_knows_its_own_line():
    found: dict[int, tuple[int, bool]] = {}

    def work(i: int) -> None:
        for _ in range(50):
            block = torch.empty((1 + i) * MIB, device="cuda")
            found[i] = at(site_of(block))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    expected = work.__code__.co_firstlineno + 2
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), (expected, False))


@card
def test_a_generator_and_its_caller_know_their_lines():
    def generate():
        yield torch.empty(MIB, device="cuda"), line()
        yield take(), TAKE_LINE

    for block, expected in generate():
        assert at(site_of(block)) == (expected, False)


@card
def test_a_coroutine_knows_its_line():
    async def inner():
        await asyncio.sleep(0)
        return torch.empty(MIB, device="cuda"), line()

    async def outer():
        return await asyncio.gather(inner(), inner())

    for block, expected in asyncio.run(outer()):
        assert at(site_of(block)) == (expected, False)


@card
def test_a_deep_recursion_does_not_hide_the_line():
    def dive(depth: int):
        return dive(depth - 1) if depth else (torch.empty(MIB, device="cuda"), line())

    block, expected = dive(500)
    assert at(site_of(block)) == (expected, False)


# ---- Backward


class Net(nn.Module):
    """A model whose lines are known."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1024, 1024, device="cuda")
        self.second = nn.Linear(1024, 1024, device="cuda")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = torch.relu(x)
        return self.second(x)

    LINES = forward.__code__.co_firstlineno


def lines_of_gradients(model: nn.Module) -> dict[str, tuple[int, bool]]:
    """By the large parameters' names."""
    return {
        name: at(site_of(p.grad))
        for name, p in model.named_parameters()
        if p.numel() >= MIB // 4
    }


@card
def test_what_backward_makes_is_inferred_from_the_line_of_forward():
    net = Net()
    net(torch.ones(1024, 1024, device="cuda")).sum().backward()
    assert lines_of_gradients(net) == {
        "first.weight": (Net.LINES + 1, True),
        "second.weight": (Net.LINES + 3, True),
    }


@card
def test_a_second_backward_adds_to_gradients_under_the_same_line():
    net = Net()
    for _ in range(2):
        net(torch.ones(1024, 1024, device="cuda")).sum().backward()
    assert {inferred for _, inferred in lines_of_gradients(net).values()} == {True}


@card
def test_each_gradient_has_the_line_of_its_own_operator():
    x = torch.ones(MIB, device="cuda", requires_grad=True)
    y, expected = torch.exp(x), line()
    z = torch.sin(y)
    seen = []
    y.register_hook(lambda grad: seen.append(at(site_of(grad))))
    z.sum().backward()
    assert at(site_of(x.grad)) == (expected, True)
    assert seen == [(expected + 1, True)]


@card
def test_the_forward_of_another_thread_is_found():
    found = {}

    def forward() -> None:
        x = torch.ones(MIB, device="cuda", requires_grad=True)
        y, found["line"] = torch.exp(x), line()
        found["x"], found["loss"] = x, y.sum()
        done.set()
        go.wait()  # its log is given up with the thread

    done, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=forward)
    thread.start()
    done.wait()
    found["loss"].backward()
    go.set()
    thread.join()
    assert at(site_of(found["x"].grad)) == (found["line"], True)


@card
def test_backward_written_by_the_user_has_lines_of_its_own():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    x = torch.ones(MIB, device="cuda", requires_grad=True)
    Twice.apply(x).sum().backward()
    assert at(site_of(x.grad)) == (Twice.backward.__code__.co_firstlineno + 2, False)


@pytest.mark.parametrize("reentrant", [False, True])
@card
def test_what_a_checkpoint_computes_again_has_the_line_of_forward(reentrant):
    seen = []

    def block(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x)
        seen.append(at(site_of(y)))
        return torch.sin(y)

    x = torch.ones(MIB, device="cuda", requires_grad=True)
    checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    first = block.__code__.co_firstlineno
    assert seen == [(first + 1, False)] * 2
    assert at(site_of(x.grad)) == (first + 1, True)


# ---- What the sites hold


@card
def test_what_a_line_holds_is_counted_until_it_is_freed():
    from oomph.memory import sites

    blocks = [take(3) for _ in range(4)]
    (held,) = [h for h in sites.live(0) if sites.resolve(h.site).line == TAKE_LINE]
    assert (held.size_bytes, held.count) == (12 * MIB, 4)
    del blocks[1:]
    (held,) = [h for h in sites.live(0) if sites.resolve(h.site).line == TAKE_LINE]
    assert (held.size_bytes, held.count) == (3 * MIB, 1)
    blocks.clear()
    assert TAKE_LINE not in {sites.resolve(h.site).line for h in sites.live(0)}


@card
def test_the_largest_holder_comes_first():
    from oomph.memory import sites

    kept = [torch.empty(MIB, device="cuda"), take(32)]
    assert sites.resolve(sites.live(0)[0].site).line == TAKE_LINE
    assert len(kept) == len(sites.live(0))


@card
def test_the_blocks_in_use_are_listed_with_their_sites():
    from oomph import _C
    from oomph.memory import sites

    kept = [take(2), torch.empty(10, device="cuda")]
    (block,) = _C.live_blocks(0, MIB)
    assert block[:3] == (kept[0].data_ptr(), 2 * MIB, 2 * MIB)
    assert sites.resolve(block[3]).line == TAKE_LINE
    assert len(_C.live_blocks(0)) == 2


# ---- The GIL


def test_no_allocation_of_backward_waits_for_a_busy_thread():
    # A thread that runs nothing but Python gives the GIL up to none, and ends once
    # backward has: never, if one of the blocks that its 100 nodes make waited. What
    # loss.backward() does before it calls the engine gives the GIL up by itself.
    code = """
    import sys, threading, torch
    from oomph import _C
    from oomph.memory import sites

    x = torch.ones(1 << 18, device="cuda", requires_grad=True)
    x.exp().sum().backward()  # starts the threads of backward, which take the GIL once
    x.grad = None
    y = x
    for _ in range(100):
        y = torch.exp(y)
    loss = y.sum()
    one = torch.ones_like(loss)
    engine = torch.autograd.Variable._execution_engine
    may_spin = threading.Lock()
    may_spin.acquire()
    def spin():
        may_spin.acquire()
        while x.grad is None:
            pass
    thread = threading.Thread(target=spin)
    thread.start()
    sys.setswitchinterval(3600)
    may_spin.release()
    engine.run_backward((loss,), (one,), False, False, (), accumulate_grad=True)
    thread.join()
    print(sites.resolve(_C.site_of(x.grad.data_ptr())).line)
    """
    result = run(code, card="2GiB,context=0", conf="offload:off", timeout=120)
    assert result.out.split() == ["11"], result.err


def test_what_a_library_writes_elsewhere_is_not_the_users(tmp_path, monkeypatch):
    """As PyTorch Geometric does for the messages of each layer."""
    from oomph.memory import sites

    written, own = tmp_path / "propagate.py", tmp_path / "own.py"
    for name, path in (("torch.nn._propagate", written), ("own.part", own)):
        path.write_text("def run(): pass\n")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
    assert not sites.is_user(str(written))
    assert sites.is_user(str(own))
