"""What the error says when memory is gone, and what it leaves behind."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import re
import sys
import textwrap
import threading
import types
import weakref
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from oomph.diagnosis import forecast
from support import MIB, ROOT, Simulated, execute, oomph, remedies, run
from torch import nn

# The tests of a module share a process, and a machine that may be slow.
forecast.SECONDS_IN_ALL = math.inf
CARD = "512MiB,context=0,memory=real"
card = Simulated(CARD, "offload:off,reserve:0,error:full")
small = Simulated("128MiB,context=0,memory=real", "offload:off,reserve:0")


def take(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


HERE = os.path.relpath(__file__)
TAKE_LINE = take.__code__.co_firstlineno + 1


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x))

    LINE = forward.__code__.co_firstlineno + 1


class Net(nn.Module):
    """A layer has 4 MiB of weights, and saves 2 MiB a sample for backward."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def batch(count: int) -> torch.Tensor:
    return torch.zeros(count, 256, 1024, device="cuda")  # of 1 MiB


def fail(function=lambda: take(1024)) -> str:
    """The text of the error that the function must raise."""
    with pytest.raises(torch.OutOfMemoryError) as caught:
        function()
    assert len(caught.value.args) == 1
    return str(caught.value)


def rows(text: str) -> dict[str, str]:
    """Sizes by what follows them."""
    found = (line.strip().split("  ", 1) for line in text.splitlines()[1:])
    return {part[1]: part[0] for part in found if len(part) == 2}


def size_of(text: str, name: str) -> str:
    (found,) = [size for row, size in rows(text).items() if row.startswith(name)]
    return found


# ---- The text


@card
def test_the_text_begins_with_pytorchs_line():
    first, *more = fail().splitlines()
    assert first.startswith("CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0")
    assert 0 < len(more) <= 25


@card
def test_it_says_which_line_asked():
    text = fail()
    assert f"Asked for at {HERE}:{TAKE_LINE} (take)" in text
    assert "    return torch.empty(mib * MIB," in text


@card
def test_a_line_of_a_notebook_is_named_by_its_cell():
    class Compiler:  # IPython's, as far as it says how cells are called
        def format_code_name(self, name: str) -> tuple[str, str] | None:
            return ("Cell", "In[7]") if name == cell else None

    cell = "/tmp/ipykernel_12/34567.py"
    notebook = types.ModuleType("IPython")
    notebook.get_ipython = lambda: types.SimpleNamespace(compile=Compiler())
    scope = {"torch": torch}
    exec(compile("\ndef grow(): return torch.empty(1 << 30)", cell, "exec"), scope)
    sys.modules["IPython"] = notebook
    try:
        with torch.device("cuda"):
            text = fail(scope["grow"])
    finally:
        del sys.modules["IPython"]
    assert "Asked for at Cell In[7], line 2 (grow)" in text


@card
def test_the_lines_that_hold_most_come_first():
    kept = [take(200), torch.empty(25 * MIB, device="cuda")]
    text = fail()
    assert f"{TAKE_LINE} (take), 1 block, inputs and other tensors" in text
    assert text.index("200.00 MiB  ") < text.index("100.00 MiB  ")
    assert len(kept) == 2


@pytest.mark.long
@card
def test_each_category_has_its_bytes():
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    net(batch(1)).backward()
    optimizer.step()
    x = batch(8)
    loss = net(x)
    text = fail()
    assert size_of(text, "parameters and buffers") == "16.02 MiB"
    assert size_of(text, "gradients") == "16.02 MiB"
    assert size_of(text, "optimizer state") == "32.03 MiB"
    # What each layer's two operators were given, but not the first, which is the batch.
    assert size_of(text, "activations saved") == "56.00 MiB"
    assert loss.grad_fn is not None


@pytest.mark.long
@card
def test_what_backward_asks_for_names_the_line_of_forward():
    x = torch.zeros(100 * MIB // 4, device="cuda", requires_grad=True)
    ballast = []

    def step():
        y = torch.exp(x)
        ballast.append(take(250))
        y.backward(y)

    text = fail(step)
    assert f"Asked for by the backward of {HERE}:" in text
    assert "(inferred), in ExpBackward0" in text
    assert "y = torch.exp(x)" in text


@card
def test_graph_pools_are_told_apart():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = torch.zeros(25 * MIB, device="cuda")
    assert size_of(fail(), "graph pools") == "100.00 MiB"
    del kept


@pytest.mark.long
def test_buckets_of_ddp_are_told_apart_and_may_be_the_gradients(tmp_path):
    code = """
    import torch
    import torch.distributed as dist
    from torch import nn
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parts = [nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)]
    net = nn.parallel.DistributedDataParallel(nn.Sequential(*parts).cuda())
    def train(rows):
        for _ in range(3):
            net(torch.ones(rows, 2048, device="cuda")).sum().backward()
    train(16)
    train(16384)
    """
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(code))
    conf = "offload:off,reserve:0,error:full"
    result = execute(sys.executable, script, card="1GiB,context=0", conf=conf)
    text = result.err[result.err.index("CUDA out of memory") :].replace("[rank0]: ", "")
    weights = 8 * (2048 + 1) * 2048 * 4 / MIB
    assert size_of(text, "gradients") == f"{weights:.2f} MiB"
    assert size_of(text, "DDP buckets") == f"{weights:.2f} MiB"
    assert "activations saved for backward, " not in text
    assert "gradient_as_bucket_view=True); cost: nothing" in text
    assert "A whole step needs about" in text


@card
def test_it_looks_like_the_shape_of_a_parameter():
    embedding = nn.Embedding(32768, 1024, device="cuda")
    kept = take(300)
    text = fail(lambda: torch.empty_like(embedding.weight))
    assert "probably a float32 tensor of shape [32768, 1024], like a parameter" in text
    del kept


@card
def test_a_long_line_of_source_is_cut():
    assert all(len(line) < 300 for line in fail().splitlines()[1:])
    text = fail(lambda: torch.empty(1 << 30, dtype=torch.uint8, device="cuda").zero_())
    (source,) = [line for line in text.splitlines() if "text = fail(" in line]
    assert source.endswith("...")


@card
def test_without_gaps_fragmentation_is_not_the_cause():
    kept = take(400)
    text = fail()
    assert "Fragmentation is not the cause: it wastes only" in text
    assert ", and 912.00 MiB is needed." in text
    del kept


@card
def test_free_pages_that_were_not_enough_are_no_fragmentation():
    kept = [take(150) for _ in range(3)]
    del kept[:2]
    text = fail(lambda: take(512))
    assert "not the cause: it wastes only 0 bytes, and 150.00 MiB is needed." in text
    torch.cuda.empty_cache()


@card
def test_free_parts_of_pages_in_use_are_fragmentation():
    blocks = [torch.empty(5 * MIB // 4, dtype=torch.uint8, device="cuda")]
    with contextlib.suppress(torch.OutOfMemoryError):
        while True:
            blocks.append(torch.empty(5 * MIB // 4, dtype=torch.uint8, device="cuda"))
    del blocks[::2]
    text = fail(lambda: take(200))
    found = re.search(
        r"is a cause: it wastes ([\d.]+) MiB, and ([\d.]+) MiB is needed",
        text,
    )
    assert found is not None, text
    gaps, missing = (float(number) for number in found.groups())
    assert missing <= 200 and 240 < gaps <= 256
    del blocks
    torch.cuda.empty_cache()


@card
def test_what_others_hold_is_told_apart():
    # The simulated card has no other user; its context takes what is configured.
    assert "CUDA itself" not in fail()


def test_the_context_is_counted_for_cuda():
    code = "import torch; torch.empty(1 << 30, device='cuda')"
    result = run(code, card="512MiB,context=100MiB", conf="offload:off,reserve:0")
    assert "100.00 MiB  CUDA itself" in result.err


# ---- Remedies


def shortage(layers: int, samples: int) -> str:
    def step() -> None:
        net = Net(layers).cuda()
        x = batch(samples)
        net(x).backward()

    return fail(step)


@card
def test_a_smaller_batch_that_fits_is_named():
    assert "batch 64 -> 16, accumulating gradients over 4" in shortage(8, 64)
    gc.collect()
    net = Net(8).cuda()
    for _ in range(4):
        net(batch(16)).backward()
    with pytest.raises(torch.OutOfMemoryError):
        net(batch(32)).backward()


@card
def test_the_blocks_that_checkpointing_helps_are_named():
    assert "checkpointing the 8 Layer modules (layers.*)" in shortage(8, 64)


@card
def test_checkpointing_is_not_named_where_inputs_are_all_that_is_saved():
    x = batch(20).requires_grad_()
    loss = nn.Sequential(*(nn.Sigmoid() for _ in range(3)))(x).sum()
    assert "checkpointing the" not in fail()
    assert loss.grad_fn is not None


@card
def test_a_batch_of_one_is_not_halved():
    kept = take(440)
    text = shortage(6, 1)
    assert "batch 1" not in text
    del kept


@card
def test_what_cannot_help_is_not_named():
    text = fail()  # there is no model, no batch and no optimizer
    assert not re.search(r"batch \d", text)
    for remedy in ("checkpoint", "autocast", "8-bit", "fused", "FSDP"):
        assert remedy not in text


@pytest.mark.long
@card
def test_autocast_is_not_named_where_it_is_on():
    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            net = Net(8).cuda()
            net(batch(120)).backward()

    assert "torch.autocast(" not in fail(step)
    assert "torch.autocast" in shortage(8, 64)


@pytest.mark.long
@card
def test_a_step_of_an_optimizer_is_helped_by_a_fused_one():
    net = Net(28).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    net(batch(1)).backward()
    kept = take(40)
    text = fail(optimizer.step)
    assert "batch" not in text
    assert "8-bit states" in text
    del kept


@card
def test_what_a_step_has_yet_to_make_for_itself_is_wanted_as_well():
    net = Net(16).cuda()
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        net(batch(1)).backward()
        optimizer.step()  # makes 4 MiB a layer for itself, one after another

    step()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    kept = take((free >> 20) - 44)
    text = fail(step)
    named = remedies(text)
    assert named["AdamW(..., fused=True)"], text
    assert "batch" not in text
    wanted, unit = size_of(text, "oomph's offload").split()
    assert unit == "MiB"
    assert 15 < float(wanted) <= 25
    del kept


@card
def test_logits_are_cut_into_chunks():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(16384, 64)
            self.head = nn.Linear(64, 16384, bias=False)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.head(self.tokens(x)).flatten(0, 1), y)

    def step() -> None:
        model = Model().cuda()
        x = torch.zeros(8, 512, dtype=torch.long, device="cuda")
        model(x, x.flatten()).backward()

    text = fail(step)
    assert "cross-entropy in 8 chunks, 512 of the 4096 rows of logits at a time" in text
    assert "probably a float32 tensor of shape [8, 512, 16384]" in text


@pytest.mark.long
@card
def test_evaluation_needs_no_graph():
    def evaluate() -> None:
        net = Net(8).cuda().eval()
        net(batch(64))

    assert "torch.no_grad() around evaluation" in fail(evaluate)


@card
def test_a_gradient_of_a_model_in_evaluation_wants_its_graph():
    net, rest = Net(8).cuda().eval(), []

    def score(x: torch.Tensor) -> torch.Tensor:
        y = net(x)
        rest.append(take(torch.cuda.mem_get_info()[0] // MIB - 2))
        return y

    text = fail(lambda: torch.func.grad(score)(batch(4)))
    assert "by the backward of" in text
    assert "around evaluation" not in text
    rest.clear()


@pytest.mark.long
@card
def test_a_model_that_nobody_trains_may_have_half_the_bits():
    nets = [Net(32).cuda() for _ in range(3)]
    text = fail(lambda: Net(64).cuda())
    assert re.search(r"2\d\d\.\d+ MiB  parameters in bfloat16", text), text
    assert len(nets) == 3


@card
def test_data_that_waits_on_the_device_is_named():
    data = take(400)
    text = fail(lambda: take(200))
    assert "600.00 MiB  keeping inputs and other tensors on the CPU" in text
    del data


KEEPING = "keeping inputs and other tensors on the CPU"


@dataclass
class Rollout:
    images: torch.Tensor
    device: str = "cuda"


@card
@pytest.mark.parametrize("form", ["to", "cuda", "zeros", "attribute", "entry"])
def test_data_that_has_no_room_is_named(form: str):
    net, x = Net().cuda(), torch.empty(600, MIB, dtype=torch.uint8)
    rollout, parts = Rollout(x), {"images": x}
    bring = {
        "to": lambda: x.to("cuda"),
        "cuda": lambda: x.cuda(),
        "zeros": lambda: torch.zeros(*x.shape, device=rollout.device),
        "attribute": lambda: rollout.images.to(rollout.device),
        "entry": lambda: parts["images"].to("cuda", non_blocking=True),
    }[form]
    text = fail(bring)
    size = "2.34 GiB" if form == "zeros" else "600.00 MiB"
    assert f"{size}  {KEEPING}" in text, text
    assert "Backward will need more" not in text
    del net


@pytest.mark.long
@card
@pytest.mark.parametrize("form", ["product", "made like", "of parts", "model"])
def test_what_is_computed_is_no_data(form: str):
    x = take(1).view(torch.float32)
    parts, net = [x] * 600, Net(0)
    net.layers.append(nn.Linear(12000, 12000))
    compute = {
        "product": lambda: x[:, None] * x,
        "made like": lambda: torch.zeros_like(x[:1].expand(160 * MIB)),
        "of parts": lambda: torch.cat(parts),
        "model": lambda: net.to("cuda"),
    }[form]
    assert KEEPING not in fail(compute)


@card
def test_oomphs_own_offload_is_named_where_it_is_off():
    kept = take(400)
    assert "oomph's offload:on-oom" in fail(lambda: take(200))
    del kept


def test_the_host_limit_is_named_where_it_was_in_the_way():
    code = """
    import torch
    a = torch.empty(500 << 20, dtype=torch.uint8, device='cuda')
    b = torch.empty(200 << 20, dtype=torch.uint8, device='cuda')
    """
    result = run(code, card=CARD, conf="reserve:0,host_limit:64MiB")
    assert "oomph's host_limit: at least 200.00 MiB" in result.err


@card
def test_the_usual_advice_is_said_to_be_in_vain():
    (line,) = [line for line in fail().splitlines() if "Would not help" in line]
    assert "expandable_segments" in line
    assert "empty_cache()" in line


# ---- What it leaves behind


@small
def test_the_error_keeps_no_tensor_alive():
    net = Net(2).cuda()
    held = []

    def step() -> None:
        x = batch(64)
        held.append(weakref.ref(x))
        net(x).backward()

    gc.disable()
    try:
        text = fail(step)
        assert "a whole step" in text.lower()
        gc.collect()  # a circle in pytest's: the error's traceback, and who caught it
        assert [ref() for ref in held] == [None]
    finally:
        gc.enable()


@card
def test_catching_halving_and_retrying_works():
    # As accelerate's find_executable_batch_size() does.
    net = Net(4).cuda()
    optimizer = torch.optim.SGD(net.parameters())
    tried, left = [], []

    def train(count: int) -> None:
        tried.append(count)
        optimizer.zero_grad()
        net(batch(count)).backward()
        optimizer.step()

    def should_reduce_batch_size(error: Exception) -> bool:
        statements = ["CUDA out of memory.", "cuDNN error", "DefaultCPUAllocator"]
        if isinstance(error, RuntimeError) and len(error.args) == 1:
            return any(text in error.args[0] for text in statements)
        return False

    train(1)  # makes gradients and workspaces
    before = torch.cuda.memory_allocated()
    count = 256
    while True:
        try:
            train(count)
            break
        except Exception as error:
            assert should_reduce_batch_size(error)
        left.append(torch.cuda.memory_allocated() <= before)
        count //= 2
    assert tried[1:] == [256, 128, 64, 32]
    assert left == [True] * 3


@card
def test_no_device_memory_is_taken():
    kept = take(510)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    fail()
    after = torch.cuda.memory_stats()["allocation.all.allocated"]
    assert after == before
    del kept


@card
def test_an_error_of_the_user_keeps_its_words():
    fail()
    error = torch.OutOfMemoryError("mine")
    assert error.args == ("mine",)
    assert torch.OutOfMemoryError().args == ()
    assert torch.OutOfMemoryError("a", 2).args == ("a", 2)


@card
def test_if_the_report_fails_pytorchs_text_stays():
    from oomph.diagnosis import diagnose

    original = diagnose._lines

    def broken(*_):
        raise MemoryError

    diagnose._lines = broken
    try:
        text = fail()
    finally:
        diagnose._lines = original
    assert len(text.splitlines()) == 1
    assert text.startswith("CUDA out of memory.")


@card
def test_a_second_shortage_while_explaining_ends_in_the_plain_text():
    from oomph.diagnosis import diagnose

    original, inner = diagnose._lines, []

    def short(*_):
        inner.append(fail())
        return []

    diagnose._lines = short
    try:
        text = fail()
    finally:
        diagnose._lines = original
    assert len(text.splitlines()) > 1
    assert len(inner[0].splitlines()) == 1


# ---- Everywhere


@card
def test_it_is_explained_in_any_thread():
    texts = []
    thread = threading.Thread(target=lambda: texts.append(fail()))
    thread.start()
    thread.join()
    assert "Asked for at" in texts[0]


@card
def test_it_is_explained_inside_backward_written_in_python():
    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return take(1024)

    x = torch.ones(10, device="cuda", requires_grad=True)
    text = fail(Greedy.apply(x).sum().backward)
    assert f"{HERE}:{TAKE_LINE} (take)" in text


@card
def test_it_is_explained_inside_a_capture():
    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            take(1024)

    assert "Asked for at" in fail(capture)


def test_at_exit_it_is_explained_or_plain():
    code = """
    import atexit, torch
    torch.ones(1, device="cuda")
    class Late:
        # Modules may be emptied by then, whose names are None.
        def __del__(self, empty=torch.empty, short=torch.OutOfMemoryError):
            try:
                empty(1 << 30, device="cuda")
            except short as error:
                print(str(error)[:18])
    kept = Late()
    @atexit.register
    def last():
        try:
            torch.empty(1 << 30, device="cuda")
        except torch.OutOfMemoryError as error:
            print(str(error)[:18])
    """
    result = run(code, card=CARD, conf="offload:off")
    assert result.code == 0, result.err
    assert result.out.splitlines() == ["CUDA out of memory"] * 2


@card
def test_a_pickled_error_keeps_its_text():
    import pickle

    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(1024)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# ---- At any time


@card
def test_explain_gives_the_same_at_any_time():
    import oomph

    net = Net(1).cuda()
    kept = take(100)
    found = oomph.explain()
    assert found.request is None
    assert {c.name: c.size_bytes for c in found.categories} == {
        "inputs and other tensors": 100 * MIB,
        "parameters and buffers": 4 * MIB + 4096,
    }
    assert (found.lines[0].line, found.lines[0].size_bytes) == (TAKE_LINE, 100 * MIB)
    assert len(found.text.splitlines()) <= 25
    assert str(found) == found.text
    del net, kept


@card
def test_its_data_is_json():
    import oomph

    kept = take(100)
    found = oomph.explain(0)
    data = json.loads(json.dumps(found.as_dict()))
    assert data["categories"][0]["size_bytes"] == 100 * MIB
    assert data["shares"] == data["categories"]  # its name up to 0.1
    with pytest.deprecated_call(match="categories"):
        assert found.shares is found.categories
    assert data["lines"][0]["function"] == "take"
    del kept


def test_without_oomph_there_is_nothing_to_explain():
    import oomph

    with pytest.raises(RuntimeError, match="oomph is not installed"):
        oomph.explain(0)


# ---- What the README shows


def test_the_readme_shows_the_text_as_it_is():
    shown = re.search(
        r"\$ oomph (run [^\n]*offload:off[^\n]*)\n```\n\n```text\n(.*?)\n```",
        (ROOT / "README.md").read_text(),
        re.DOTALL,
    )
    assert shown is not None
    words = shown.group(1).split()
    card = words.index("--simulate") + 1
    words[card] += ",host=64GiB"  # whatever other tests take at the moment
    said = oomph(*words, cwd=ROOT).err.splitlines()
    wanted = shown.group(2).splitlines()
    assert said[-len(wanted) :] == wanted


def test_a_leak_that_was_found_is_among_the_remedies(tmp_path):
    code = """
    import torch, oomph
    from torch import nn
    layer = nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters())
    losses = []
    with oomph.leaks.watch():
        for _ in range(7):
            loss = layer(torch.ones(4096, 1024, device="cuda")).exp().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(layer(torch.ones(4096, 1024, device="cuda")).exp().sum())
    torch.empty(5 << 30, dtype=torch.uint8, device="cuda")
    """
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(code))
    result = execute(sys.executable, script, card="4GiB,context=0", conf="offload:off")
    (line,) = [line for line in result.err.splitlines() if "fixing the leak" in line]
    assert "224.00 MiB  fixing the leak: loss kept at train.py:13" in line
