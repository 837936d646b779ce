"""Steps that run again without memory: what they tell, and that they leave nothing."""

from __future__ import annotations

import logging
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from forecasts import predicted
from oomph.diagnosis import forecast
from oomph.forked import child
from oomph.forked.child import Session, TimeLimit
from oomph.replay import step
from oomph.replay.outcome import Outcome
from support import MIB, Simulated, remedies
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# The tests of a module share a process.
forecast.SECONDS_IN_ALL = math.inf
CONF = "offload:off,reserve:0,error:full"
card = Simulated("1GiB,context=0", CONF)
brief = Simulated("1GiB,context=0", "offload:off,reserve:0")


def text_of(function) -> str:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        function()
    return str(caught.value)


def layers(count: int) -> nn.Sequential:
    parts = [nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(count)]
    return nn.Sequential(*parts).cuda()


# ---- The child


def answers(work, seconds: float = 10.0):
    with Session(lambda: (work(), None), TimeLimit(seconds)) as session:
        return session.first


def spin() -> None:
    while True:
        pass


def test_a_child_tells_what_it_found():
    assert answers(lambda: {"found": [1, 2]}) == {"found": [1, 2]}


def test_a_child_that_fails_tells_nothing():
    def fail():
        raise ValueError

    assert answers(fail) is None


def test_a_child_whose_cpu_time_is_over_ends_and_it_is_known_why():
    time_limit = TimeLimit(0.2)
    with Session(lambda: (spin(), None), time_limit) as session:
        assert session.first is None
    assert time_limit.was_short
    assert time_limit.used_s > 0


def test_a_child_that_waits_for_ever_ends_and_it_is_known_why(monkeypatch):
    monkeypatch.setattr(child, "LOOKS_MAX", 2)
    time_limit = TimeLimit(600)
    with Session(lambda: (time.sleep(600), None), time_limit) as session:
        assert session.first is None
    assert time_limit.was_short


def test_a_child_that_others_keep_from_running_has_its_time_all_the_same():
    """It stops, longer than it may run, as if others had all cores."""
    stopped: list[int] = []

    def go_on() -> None:
        while not stopped:
            found = {pid for pid in children() if is_stopped(pid)}
            stopped.extend(map(int, found))
            time.sleep(0.01)
        time.sleep(1)
        os.kill(stopped[0], signal.SIGCONT)

    def work() -> str:
        signal.raise_signal(signal.SIGSTOP)
        return "went on"

    helper = threading.Thread(target=go_on)
    helper.start()
    assert answers(work, 0.5) == "went on"
    helper.join()


def is_stopped(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


def test_the_time_of_all_that_answer_is_counted():
    time_limit = TimeLimit(60)

    def answer(_: int) -> float:
        """Gives the time of the CPU that it took."""
        end = child.used_s() + 0.1
        while child.used_s() < end:
            pass
        return child.used_s()

    with Session(lambda: ("ready", answer), time_limit) as session:
        used_s = session.ask([1, 2, 3])
    assert time_limit.used_s >= sum(used_s)
    assert not time_limit.was_short


def test_questions_there_is_no_time_for_have_no_answer_and_it_is_known_why():
    time_limit = TimeLimit(0.5)
    with Session(lambda: ("ready", lambda _: spin()), time_limit) as session:
        assert session.ask([1]) == [None]
    assert time_limit.was_short


def children() -> set[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


def test_no_child_is_left():
    before = children()
    answers(lambda: 1)
    answers(spin, 0.2)
    assert children() <= before


def test_a_child_answers_questions_each_from_the_same_state():
    state: list[int] = []

    def answer(number: int) -> int:
        state.append(number)
        return len(state)

    with Session(lambda: ("ready", answer), TimeLimit(10)) as session:
        assert session.first == "ready"
        assert session.ask([5, 6, 7]) == [1, 1, 1]
    assert state == []
    assert session.ask([1]) == [None]


def test_a_child_changes_no_file(tmp_path):
    log, data = tmp_path / "log", tmp_path / "data"
    data.write_text("abcdef")
    with open(log, "w", buffering=1) as written, open(data) as read:
        written.write("before\n")
        assert read.read(2) == "ab"

        def work():
            written.write("from the child\n")
            rest = read.read()
            tried = []
            for act in (
                lambda: (tmp_path / "new").write_text("new"),
                lambda: os.remove(data),
                lambda: os.fork(),
                lambda: os.kill(os.getppid(), 0),
            ):
                try:
                    act()
                except PermissionError:
                    tried.append("refused")
            return [rest, tried]

        assert answers(work) == ["cdef", ["refused"] * 4]
        assert os.lseek(read.fileno(), 0, os.SEEK_CUR) == 6  # Python read it ahead
    assert log.read_text() == "before\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "log"]


# ---- Steps of which a part did not run


def step_of(net: nn.Module, rows: int = 16384) -> None:
    for _ in range(2):
        net(torch.ones(rows, 1024, device="cuda")).sum().backward()


@card
def test_a_step_of_which_a_turn_is_missing_needs_at_least_what_ran():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "LONG_ITERATION", 0.0)
        text = text_of(lambda: step_of(layers(8)))
    assert "A whole step needs at least" in text
    assert "is enough by itself" not in text


@pytest.mark.long
@card
def test_a_step_that_ends_in_an_error_where_it_runs_again_needs_at_least_that():
    net = layers(8)
    optimizer = torch.optim.Adam(net.parameters())

    def train() -> None:
        for _ in range(2):
            net(torch.ones(16384, 1024, device="cuda")).sum().backward()
            subprocess.run(["true"], check=True)  # which is refused there
            optimizer.step()

    text = text_of(train)
    assert "A whole step needs at least" in text
    assert "is enough by itself" not in text


@pytest.mark.long
@card
def test_a_loop_further_out_that_takes_too_long_may_need_more():
    net, parent = layers(8), os.getpid()
    optimizer = torch.optim.Adam(net.parameters())

    def accumulate() -> None:
        for _ in range(2):
            net(torch.ones(16384, 1024, device="cuda")).sum().backward()

    def train() -> None:
        for _ in range(2):
            accumulate()
            if os.getpid() != parent:
                spin()
            optimizer.step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "SECONDS", 20.0)
        assert "A whole step needs at least" in text_of(train)


@card
def test_it_is_said_that_time_is_up():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "SECONDS_IN_ALL", 0.0)
        text = text_of(lambda: step_of(layers(8)))
    assert "oomph had no CPU time left to run it again" in text


# ---- The program


WAYS = {  # to look at what is on the card, and at the card
    "arrays": lambda out: print(out.cpu().numpy().argmax(1), out[:2].tolist()),
    "events": lambda out: print(EVENTS[0].record(), EVENTS[0].elapsed_time(EVENTS[1])),
    "streams": lambda out: STREAMS[0].record_event().synchronize(),
    "memory": lambda out: print(torch.cuda.mem_get_info()[0] / MIB),
    "figures": lambda out: print(torch.cuda.memory_stats()["num_alloc_retries"]),
}
EVENTS = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
STREAMS: list[torch.cuda.Stream] = []


@pytest.mark.long
@card
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_looks_runs_again_to_its_end(way):
    net = layers(8)
    optimizer = torch.optim.Adam(net.parameters())
    for event in EVENTS:
        event.record()
    STREAMS[:] = [torch.cuda.Stream()]

    def train(looks: bool) -> None:
        for _ in range(2):
            out = net(torch.ones(16384, 1024, device="cuda"))
            if looks:
                WAYS[way](out.detach())
            out.sum().backward()
            optimizer.step()

    def needed(looks: bool) -> str:
        found = re.search(r"A whole step needs .*", text_of(lambda: train(looks)))
        assert found is not None
        return found[0]

    assert needed(True) == needed(False)


@card
def test_what_a_step_writes_goes_nowhere_where_it_runs_again():
    folder = Path(tempfile.mkdtemp())
    net = layers(8)
    optimizer = torch.optim.Adam(net.parameters())
    handler = logging.FileHandler(folder / "late.log", delay=True)
    log = logging.getLogger("of a test")
    log.addHandler(handler)
    (folder / "there").write_text("0.5")

    def train(writes: bool) -> None:
        for turn in range(2):
            loss = net(torch.ones(16384, 1024, device="cuda")).sum()
            if writes:
                with open(folder / "log", "a") as file:
                    print(turn, loss.item(), file=file)
                (folder / "loss").write_text(f"{loss.item():.3f}")
                log.error("the loss is %s", loss.item())
                rate = float((folder / "there").read_text())
                optimizer.param_groups[0]["lr"] = rate
            loss.backward()
            if writes:
                os.makedirs(folder / f"at_{turn}", exist_ok=True)
                torch.save(net.state_dict(), folder / f"at_{turn}" / "new.pt")
                os.replace(folder / f"at_{turn}" / "new.pt", folder / "model.pt")
                shutil.copy(folder / "model.pt", folder / "best.pt")
                with open(folder / "state", "xb") as file:
                    pickle.dump(optimizer.state_dict(), file)
                with tempfile.NamedTemporaryFile("w", dir=folder) as file:
                    file.write("for a moment")
                numpy.savez(folder / "seen.npz", loss=numpy.zeros(4))
            optimizer.step()
            if writes:
                (folder / "there").unlink()

    def needed(writes: bool) -> str:
        found = re.search(r"A whole step needs .*", text_of(lambda: train(writes)))
        assert found is not None
        return found[0]

    plain = needed(False)
    assert plain.startswith("A whole step needs about")
    assert needed(True) == plain
    # What came before it ran out of memory was nothing.
    assert [path.name for path in folder.iterdir()] == ["there"]
    shutil.rmtree(folder)


@card
def test_the_program_is_as_it_was():
    net = layers(8)
    optimizer = torch.optim.Adam(net.parameters())
    seen: list[int] = []
    counts = {"steps": 0}

    def train() -> None:
        for _ in range(2):
            counts["steps"] += 1
            x = torch.ones(16384, 1024, device="cuda")
            out = net(x)
            seen.append(len(seen))
            out.sum().backward()
            optimizer.step()

    text = text_of(train)
    assert "A whole step needs about" in text
    assert (seen, counts) == ([], {"steps": 1})
    assert optimizer.state == {}
    assert all(parameter.grad is None for parameter in net.parameters())
    assert type(net[0][0].weight) is nn.Parameter


@card
def test_a_frozen_teacher_is_to_record_nothing():
    teacher, student = layers(12), layers(2)
    optimizer = torch.optim.SGD(student.parameters())

    def train() -> None:
        for _ in range(2):
            x = torch.ones(8192, 1024, device="cuda")
            loss = F.mse_loss(student(x), teacher(x).detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    named = remedies(text_of(train))
    (action,) = [action for action in named if "torch.no_grad()" in action]
    assert named[action]
    assert "which no optimizer trains" in action


@card
def test_an_optimizer_makes_no_state_for_what_is_frozen():
    base, adapter = layers(30).requires_grad_(False), layers(2)
    net = nn.Sequential(adapter, base)
    optimizer = torch.optim.Adam(net.parameters())  # as many give it: all

    def train() -> None:
        for rows in (64, 32768):
            x = torch.ones(rows, 1024, device="cuda")
            net(x).sum().backward()
            optimizer.step()

    assert "The optimizer will allocate" not in text_of(train)


@card
def test_the_batch_is_that_of_the_loader():
    net = layers(16)
    data = TensorDataset(torch.ones(32, 512, 1024), torch.ones(32, 512, 1024))

    def train() -> None:
        for x, y in DataLoader(data, batch_size=16):
            F.mse_loss(net(x.cuda()), y.cuda()).backward()

    assert "batch 16 -> " in text_of(train)


@card
def test_a_graph_is_sampled_and_its_nodes_are_no_batch():
    net = layers(6)
    nodes = torch.ones(16384, 1024, device="cuda")
    labels = torch.ones(16384, 1024, device="cuda")
    edges = torch.randint(16384, (2, 50000), device="cuda")

    def train() -> None:
        for _ in range(2):
            summed = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])
            F.mse_loss(net(summed), labels).backward()

    text = text_of(train)
    assert "A whole step needs about" in text
    assert "batch 16384" not in text
    sampled = "neighbour sampling: 2 parts of the 16384 nodes and 50000 edges"
    (action,) = [a for a in remedies(text) if a.startswith(sampled)]
    assert remedies(text)[action]


@card
def test_graphs_that_a_loader_brings_are_not_sampled():
    net = layers(10)

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(2):
            yield torch.ones(16384, 1024), torch.randint(16384, (2, 50000))

    def train() -> None:
        for brought, pairs in batches():
            nodes, edges = brought.cuda(), pairs.cuda()
            summed = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])
            net(summed).sum().backward()

    text = text_of(train)
    assert "A whole step needs about" in text
    assert "neighbour sampling" not in text


@card
def test_a_loss_that_compares_samples_is_changed_by_accumulation():
    net = layers(1)
    x = torch.ones(10240, 512, device="cuda")
    right = torch.arange(10240, device="cuda")

    def train() -> None:
        for _ in range(2):
            made = F.normalize(net(torch.cat([x, x], dim=1)), dim=1)
            F.cross_entropy(made @ made.T, right).backward()

    text = text_of(train)
    (line,) = [line for line in text.splitlines() if "  batch 10240 -> " in line]
    assert "the loss compares samples with each other" in line


def sequence(*layers: nn.Module) -> str:
    """What is said of training these."""
    net = nn.Sequential(*layers).cuda()

    def train() -> None:
        for _ in range(2):
            net(torch.ones(22528, 1024, device="cuda")).sum().backward()

    return text_of(train)


@card
def test_a_sequence_of_different_layers_is_checkpointed_in_segments():
    parts = [(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8)]
    named = remedies(sequence(*(layer for part in parts for layer in part)))
    (action,) = [action for action in named if "checkpoint_sequential" in action]
    assert action == "checkpoint_sequential(model, 4, ...)"
    assert named[action]


@card
def test_no_segment_begins_with_a_layer_that_works_in_place():
    parts = [
        (nn.Linear(1024, 1024), nn.ReLU(inplace=True), nn.GELU()) for _ in range(6)
    ]
    layers = [layer for part in parts for layer in part][:-2]  # 16: 4, 8 and 12 begin
    text = sequence(*layers)
    (action,) = [a for a in remedies(text) if a.startswith("checkpointing model")]
    assert action.startswith(
        "checkpointing model in 4 parts, cut before layers 5, 8, 12,"
    )


def saved(text: str, action: str) -> float:
    """MiB that a remedy saves, whose words begin so."""
    import oomph

    assert text
    found = [r for r in oomph.last_oom().remedies if r.action.startswith(action)]
    return found[0].saves_bytes / MIB


@card
def test_tables_are_elsewhere_row_wise_or_sparse():
    table = nn.Embedding(200_000, 256, device="cuda")
    head = nn.Linear(256, 1, device="cuda")
    optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], fused=True)
    size = table.weight.numel() * 4 / MIB

    def train() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.randint(200_000, (4096,), device="cuda")
            head(table(x)).sum().backward()
            optimizer.step()

    kept = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    text = text_of(train)
    assert saved(text, "the embedding tables in CPU memory") == pytest.approx(
        4 * size, 0.01
    )
    assert saved(text, "row-wise Adagrad") == pytest.approx(3 * size, 0.03)
    assert saved(text, "sparse=True") == pytest.approx(size, 0.03)
    assert saved(text, "torch.optim.Adafactor") == pytest.approx(2 * size, 0.03)
    assert saved(text, "an optimizer with 8-bit") == pytest.approx(1.5 * size, 0.03)
    del kept


@card
@pytest.mark.parametrize("is_module", [True, False])
def test_tables_that_are_heads_as_well_stay(is_module):
    table = nn.Embedding(50_000, 256, device="cuda")
    head = nn.Linear(256, 50_000, bias=False, device="cuda")
    head.weight = table.weight
    optimizer = torch.optim.Adam(table.parameters(), fused=True)

    def train() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            hidden = table(torch.randint(50_000, (2048,), device="cuda"))
            logits = head(hidden) if is_module else hidden @ table.weight.t()
            logits.sum().backward()
            optimizer.step()

    kept = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    text = text_of(train)
    assert "A whole step needs" in text
    for words in ("embedding tables", "row-wise", "sparse=True"):
        assert words not in text
    del kept


@card
def test_halves_are_tried_where_nothing_is_trained():
    net = layers(24).eval()  # of 4 MiB each

    def score() -> None:
        with torch.no_grad():
            for _ in range(2):
                x = torch.ones(16384, 1024, device="cuda")
                net(x.to(net[0][0].weight.dtype)).float().log_softmax(-1)

    def peak() -> float:
        torch.cuda.reset_peak_memory_stats()
        score()
        return torch.cuda.max_memory_allocated() / MIB

    score()
    kept = torch.empty(760 * MIB, dtype=torch.uint8, device="cuda")
    text = text_of(score)
    del kept
    named = saved(text, "parameters in bfloat16")
    (line,) = [line for line in text.splitlines() if "parameters in bfloat16" in line]
    assert "(unknown" not in line
    plain = peak()
    net.bfloat16()
    assert named == pytest.approx(plain - peak(), abs=2)


def test_what_fits_but_for_a_little_that_no_tensor_shows_is_not_known_to():
    plain = Outcome(0, "forward", 0, {})
    known = forecast.Forecast(plain, 0, 1000 * MIB, 1000 * MIB, 0, 0, None)
    peaks = [forecast.Span(size * MIB, size * MIB) for size in (990, 998, 1001)]
    assert [known.fits(peak) for peak in peaks] == [True, None, False]


@card
def test_halves_are_recorded_where_the_step_is():
    net = layers(8).eval()  # of 4 MiB each

    def score() -> None:
        for _ in range(2):  # with a graph, which nothing goes back through
            x = torch.ones(16384, 1024, device="cuda")
            net(x.to(net[0][0].weight.dtype)).float()

    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        score()
    silent = torch.cuda.max_memory_allocated() / MIB
    named = saved(text_of(score), "parameters in bfloat16")
    assert named < 16 * 64 + 32 - silent / 2, named


@pytest.mark.parametrize(
    ("shape", "dtype"), [((16, 1, 4096, 4096), "bool"), ((8, 4096, 1024), "int64")]
)
@card
def test_a_mask_is_of_the_type_that_it_has(shape, dtype):
    net = layers(2)

    def train() -> None:
        for _ in range(2):
            x = torch.ones(1024, 1024, device="cuda")
            mask = torch.ones(shape, dtype=getattr(torch, dtype), device="cuda")
            (net(x).sum() * mask.flatten()[0]).backward()

    kept = torch.empty(900 * MIB, dtype=torch.uint8, device="cuda")
    named = {"bool": "a bool", "int64": "an int64"}[dtype]
    assert f"; probably {named} tensor of shape {list(shape)}\n" in text_of(train)
    del kept


@pytest.mark.parametrize("rows", [8192, 512])  # all, or a little of what one takes
@card
def test_of_a_loop_that_grows_only_to_keep_nothing_here_is_called_enough(rows):
    import oomph

    net = layers(2).eval()
    kept, turns = [], 40 * 8192 // rows

    def evaluate() -> None:
        with torch.no_grad():
            for _ in range(turns):
                made = net(torch.ones(8192, 1024, device="cuda"))
                kept.append(made[:rows].clone())

    text = text_of(evaluate)
    assert "This iteration of the loop needs about" in text
    assert f"Each iteration of the loop adds {rows / 256:.2f} MiB; all {turns}" in text
    first, *others = oomph.last_oom().remedies
    assert first.action.startswith(".cpu() of what the loop keeps")
    assert first.enough
    enough = [remedy.action for remedy in others if remedy.enough]
    assert enough == ["oomph's offload:on-oom"]
    kept.clear()


@card
def test_what_an_evaluation_collects_is_what_moving_it_saves():
    """Gradients of a training before differ in one dimension, as no cache does."""
    layers = [nn.Conv2d(wide, 128, 3) for wide in (128, 128, 64, 128, 128)]
    layers[1] = nn.Conv2d(128, 64, 3)
    net = nn.Sequential(nn.Conv2d(8, 128, 3), *layers).cuda()
    net(torch.ones(1, 8, 32, 32, device="cuda")).sum().backward()
    kept = []

    def evaluate() -> None:
        with torch.no_grad():
            for _ in range(100):
                kept.append(net(torch.ones(16, 8, 64, 64, device="cuda")))

    text = text_of(evaluate)
    collected = 100 * kept[0].nbytes / MIB  # by all iterations
    assert "Each iteration of the loop adds" in text
    named = saved(text, ".cpu() of what the loop keeps")
    assert named == pytest.approx(collected, 0.05)
    kept.clear()


@card
def test_a_graph_that_evaluation_keeps_is_counted_and_no_grad_would_not_keep_it():
    """All batches before have left theirs, which only autograd holds."""
    import oomph

    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda().eval()

    def predicted(batch: torch.Tensor) -> torch.Tensor:
        return model(batch)

    def evaluate() -> None:
        kept = []
        for _ in range(40):
            kept.append(predicted(torch.ones(4096, 1024, device="cuda")))

    text = text_of(evaluate)
    assert "This iteration of the loop needs about" in text
    assert (
        "Each iteration of the loop adds 80.00 MiB" in text
    )  # of the layers, and the result
    saved = {
        remedy.action: remedy.saves_bytes / MIB
        for remedy in oomph.last_oom().remedies
        if "no_grad" in remedy.action or "cpu()" in remedy.action
    }
    grads = saved["torch.no_grad() around evaluation"]
    assert grads > 3 / 4 * 0.8 * 1024, saved
    action = ".detach().cpu() of what the loop keeps, 80.00 MiB each iteration"
    assert action in saved, saved


class Decoder(nn.Module):
    """Attention of a token to those before, whose keys and values lie in a cache."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, cache: object) -> torch.Tensor:
        q, *new = (
            part.view(*x.shape[:2], 16, 64).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, *cache.joined(id(self), new))
        return x + self.out(y.transpose(1, 2).flatten(2))


class Joined:
    """A cache that grows."""

    def __init__(self) -> None:
        self.kept: dict[int, list[torch.Tensor]] = {}

    def joined(self, layer: int, new: list[torch.Tensor]) -> list[torch.Tensor]:
        if layer in self.kept:
            pairs = zip(self.kept[layer], new, strict=True)
            new = [torch.cat(pair, dim=2) for pair in pairs]
        self.kept[layer] = new
        return new


class Written:
    """A cache that is there at once."""

    def __init__(self, length: int) -> None:
        self.kept: dict[int, list[torch.Tensor]] = {}
        self.length = length

    def joined(self, layer: int, new: list[torch.Tensor]) -> list[torch.Tensor]:
        if layer not in self.kept:
            shape = (new[0].shape[0], 16, self.length, 64)
            self.kept[layer] = [torch.zeros(shape, device="cuda") for _ in new]
        for kept, part in zip(self.kept[layer], new, strict=True):
            kept[:, :, : part.shape[2]] = part
        return self.kept[layer]


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Decoder() for _ in range(8))

    def forward(self, x: torch.Tensor, cache: object) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, cache)
        return x[:, -1:]


def generate(model: nn.Module, cache: object, tokens: int, prompt: int = 64) -> None:
    x = torch.ones(32, prompt, 1024, device="cuda")
    with torch.no_grad():
        for _ in range(tokens):
            x = model(x, cache)


def held_by(text: str) -> dict[str, float]:
    """MiB of what is held, by what it is."""
    found = re.findall(r"^ +([\d.]+) MiB  ([a-z ]+)$", text, re.MULTILINE)
    return {name: float(size) for size, name in found}


@card
def test_keys_and_values_that_are_joined_to_are_a_cache_and_may_be_elsewhere():
    model = Language().cuda().eval()
    text = text_of(lambda: generate(model, Joined(), 1000))
    token = 2 * 8 * 32 * 1024 * 4 / MIB
    tokens = int(re.search(r"of the last \d+ of (\d+) tokens", text)[1])
    held = held_by(text)["cache of keys and values"]
    assert held == pytest.approx(tokens * token, rel=0.1)
    assert f"Each iteration of the loop adds {token:.2f} MiB" in text
    saved = {
        what: float(re.search(rf"([\d.]+) MiB  {what}", text)[1])
        for what in ("the cache of keys and values in CPU", "keys and values of 4 bits")
    }
    offloaded, quantized = saved.values()
    most = tokens * token * (1 + 1 / 8)  # a layer's are there twice as they are joined
    assert offloaded == pytest.approx(most * 3 / 4, rel=0.02)
    assert quantized == pytest.approx(most * (1 - 4.5 / 32), rel=0.02)
    assert ".cpu() of what" not in text


@card
def test_a_list_of_new_keys_beside_the_old_ones_is_told_to_give_back():
    import oomph

    class Listed:
        def __init__(self, old: dict[int, list[torch.Tensor]]) -> None:
            self.old, self.kept = old, {}

        def joined(self, layer: int, new: list[torch.Tensor]) -> list[torch.Tensor]:
            if layer in self.old:
                pairs = zip(self.old[layer], new, strict=True)
                new = [torch.cat(pair, dim=2) for pair in pairs]
            self.kept[layer] = new
            return new

    model = Language().cuda().eval()

    def turn(x: torch.Tensor, old: dict) -> tuple[torch.Tensor, dict]:
        cache = Listed(old)
        return model(x, cache), cache.kept

    def run() -> None:
        x, kept = torch.ones(32, 64, 1024, device="cuda"), {}
        with torch.no_grad():
            for _ in range(1000):
                x, kept = turn(x, kept)

    text = text_of(run)
    assert held_by(text)["cache of keys and values"] > 400
    assert "Each iteration of the loop adds 2.00 MiB" in text
    tokens = int(re.search(r"of the last \d+ of (\d+) tokens", text)[1])
    (saved,) = [
        remedy.saves_bytes / MIB
        for remedy in oomph.last_oom().remedies
        if remedy.action.startswith("freeing a layer's old keys and values")
    ]
    assert saved == pytest.approx(tokens * 2 * 15 / 16, rel=0.01)  # one is there twice


class Words(nn.Module):
    """A language model; its logits are those of all tokens."""

    def __init__(self, count: int = 8192) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(count, 1024), nn.Linear(1024, count)
        self.layers = nn.ModuleList(Decoder() for _ in range(8))

    def forward(self, words: torch.Tensor, cache: object) -> torch.Tensor:
        x = self.table(words)
        for layer in self.layers:
            x = layer(x, cache)
        return self.head(x)


@pytest.mark.parametrize("fraction", [0.45, 0.65, 0.8])  # in layers, the head, behind
@card
def test_what_a_prompt_has_joined_to_a_cache_is_not_joined_again(fraction):
    model = Words().cuda().eval()

    @torch.no_grad()
    def first_word(prompt: torch.Tensor, cache: Joined) -> torch.Tensor:
        logits = model(prompt, cache).double()
        return logits[:, -1].argmax(-1, keepdim=True)

    def answer() -> None:
        prompt, cache = torch.ones(8, 512, dtype=torch.long, device="cuda"), Joined()
        word = first_word(prompt, cache)
        for _ in range(2):
            word = first_word(word, cache)

    text = predicted(answer, fraction)
    action = "logits of only the last of 512 tokens (transformers: logits_to_keep=1)"
    assert action in remedies(text), text


@card
def test_a_cache_that_is_written_into_is_one_as_well():
    model = Language().cuda().eval()
    text = text_of(lambda: generate(model, Written(384), 4, 320))
    assert held_by(text)["cache of keys and values"] > 400
    assert any(action.startswith("keys and values of 4") for action in remedies(text))


@card
def test_what_a_dense_network_joins_is_no_cache():
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(512 * i, 512) for i in range(1, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.cat([x, layer(x)], dim=-1)
            return x

    model, kept = Dense().cuda().eval(), []

    def evaluate() -> None:
        with torch.no_grad():
            for _ in range(100):
                kept.append(model(torch.ones(4096, 512, device="cuda")))

    text = text_of(evaluate)
    assert "keys and values" not in text
    assert ".cpu() of what the loop keeps" in text
    kept.clear()


@card
def test_cells_and_networks_of_cudnn_are_predicted():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.GRU(512, 512, 2, batch_first=True)
            self.cell = nn.LSTMCell(512, 512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.network(x)[0]
            state = None
            for i in range(rows.shape[1]):
                state = self.cell(rows[:, i], state)
            return state[0].sum()

    net = Both().cuda()

    def train() -> None:
        for _ in range(2):
            net(torch.ones(512, 32, 512, device="cuda")).backward()

    torch.cuda.reset_peak_memory_stats()
    train()
    true = torch.cuda.max_memory_allocated()
    net.zero_grad()
    torch.cuda.empty_cache()
    with torch.no_grad():
        net.cell(torch.ones(1, 512, device="cuda"))  # brings cuBLAS's workspaces back
    torch.cuda.set_per_process_memory_fraction(0.7 * true / (1 << 30))
    text = text_of(train)
    torch.cuda.set_per_process_memory_fraction(1.0)
    (line,) = [line for line in text.splitlines() if "A whole step needs" in line]
    size, unit = line.split("about ")[1].split(",")[0].split()
    assert unit == "MiB"
    assert float(size) == pytest.approx(true / MIB, rel=0.05)


# ---- The brief text


@brief
def test_the_error_has_twelve_lines_and_the_rest_on_request():
    import oomph

    net = layers(8)

    def train() -> None:
        for _ in range(2):
            net(torch.ones(32, 1024, 1024, device="cuda")).sum().backward()

    lines = text_of(train).splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("CUDA out of memory. Tried to allocate ")
    assert re.match(r"It failed at .*\), [\d.]+ MiB short: ", lines[1])
    assert lines[2].startswith("A whole step needs about ")
    assert lines[3] == (
        "GPU 0 has 1.00 GiB. When it failed, GPU memory was held mostly by:"
    )
    assert "oomph.last_oom()" in lines[-1]
    found = oomph.last_oom()
    assert found is not None and found.request is not None
    assert found.request.step_missing_bytes > 0
    assert len(str(found).splitlines()) > 12


class Again(torch.autograd.Function):
    """Layers that keep what goes into the first, and run again one by one."""

    @staticmethod
    def forward(ctx, x, layers):
        ctx.inputs, ctx.layers = [], layers
        for layer in layers:
            ctx.inputs.append(x)
            x = layer(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        for layer, x in zip(ctx.layers[::-1], ctx.inputs[::-1], strict=True):
            with torch.enable_grad():
                given = x.detach().requires_grad_()
                out = layer(given)
            found = torch.autograd.grad(out, [given, *layer.parameters()], gradient)
            gradient = found[0]
        return gradient, None


@card
def test_what_a_function_runs_again_in_backward_is_not_checkpointed():
    wide = [nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU()]
    layers = [nn.Sequential(*wide, nn.Linear(4096, 256)).cuda() for _ in range(3)]
    x = torch.ones(16384, 256, device="cuda", requires_grad=True)

    def train() -> None:
        for _ in range(2):
            Again.apply(x, layers).sum().backward()

    text = text_of(train)
    assert "Again.backward" in text, text
    assert not any("checkpoint" in action for action in remedies(text)), text
