"""Watching for leaks: what it says, when, and that it leaves a program as it was."""

from __future__ import annotations

import functools
import gc
import io
import json
import logging
import random
import re
import textwrap
import warnings
import weakref
from pathlib import Path
from unittest import mock

import pytest
import torch
from support import KIB, MIB, ROOT, Simulated, oomph, run

simulated = Simulated("1GiB,context=0", "offload:off")

LEAKING = """
    import torch
    model = torch.nn.Linear(512, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = []
    for step in range(7):
        out = model(torch.randn(512, 512, device="cuda"))
        optimizer.zero_grad()
        out.mean().backward()
        optimizer.step()
        outputs.append(out)
        print("step", step)
"""


class Loop:
    """A training loop, step by step."""

    def __init__(self):
        self.model = torch.nn.Linear(256, 256).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self):
        out = self.model(torch.randn(16, 256, device="cuda"))
        self.optimizer.zero_grad()
        out.mean().backward()
        self.optimizer.step()
        return out


def watch(**options):
    import oomph

    return oomph.leaks.watch(**options)


# ---- What is said


@simulated
def test_sparse_gradients_that_no_step_resets_are_one_finding_that_grows():
    table = torch.nn.Embedding(1000, 64, sparse=True).cuda()
    optimizer = torch.optim.SparseAdam(table.parameters())
    ids = torch.arange(256, device="cuda")
    with watch() as watched:
        for _ in range(40):
            table(ids).square().sum().backward()
            optimizer.step()
    (finding,) = watched.findings
    assert (finding.verdict, finding.certainty) == ("zero_grad missing", "leaks")
    assert finding.growth_bytes == 256 * (64 * 4 + 8)


@simulated
def test_growth_beside_sparse_gradients_that_no_step_resets_is_told():
    table = torch.nn.Embedding(1000, 64, sparse=True).cuda()
    optimizer = torch.optim.SparseAdam(table.parameters())
    ids, addresses = torch.arange(256, device="cuda"), []
    allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
    with watch() as watched:
        for _ in range(40):
            table(ids).square().sum().backward()
            optimizer.step()
            addresses.append(allocate(2 * MIB, torch.cuda.current_stream().cuda_stream))
    for address in addresses:
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
    verdicts = [finding.verdict for finding in watched.findings]
    assert verdicts == ["zero_grad missing", "grows"]
    assert watched.findings[1].growth_bytes == pytest.approx(2 * MIB, rel=0.05)


@simulated
def test_a_finding_tells_growth_shape_dtype_holder_and_the_line_that_allocated():
    loop, kept = Loop(), []
    with watch() as watched:
        for _ in range(5):
            loop.step()
            kept.append(torch.zeros(512, 1024, device="cuda"))
    (finding,) = watched.findings
    assert (finding.verdict, finding.shape, finding.dtype) == (
        "outputs retained",
        (512, 1024),
        "float32",
    )
    assert finding.growth_bytes == 2 * MIB
    assert finding.held_by.startswith("`kept`, a list in test_a_finding")
    assert finding.line.line == finding.allocated_at[0].line
    assert (
        "kept.append(" in Path(__file__).read_text().splitlines()[finding.line.line - 1]
    )


@simulated
def test_small_blocks_are_reported_with_their_line_too():
    loop, kept = Loop(), []
    with watch() as watched:
        for _ in range(5):
            loop.step()
            kept.append(torch.zeros(1000, 2, device="cuda"))
    (finding,) = watched.findings
    assert finding.line in finding.allocated_at


@simulated
def test_small_blocks_know_their_line_only_while_something_grows():
    import oomph

    def knows():
        small = torch.zeros(1000, device="cuda")
        return oomph._C.site_of(small.data_ptr()) != 0

    loop, kept, known = Loop(), [], []
    with watch():
        for _ in range(7):
            kept.append(loop.step())
            known.append(knows())
    assert known == [False, True, True, True, False, False, False]


@simulated
def test_the_report_is_text_and_data():
    import oomph

    loop, kept = Loop(), []
    with watch():
        for _ in range(5):
            kept.append(loop.step())
    report = oomph.leaks.report()
    assert str(report).startswith("leaks found in 5 steps:\n1. outputs retained at ")
    reported = json.loads(json.dumps(report.as_dict()))
    assert reported["steps"] == 5
    assert reported["findings"][0]["verdict"] == "outputs retained"


@simulated
def test_a_leak_that_comes_with_every_tenth_step_is_found():
    loop, kept = Loop(), []
    with watch() as watched:
        for step in range(200):
            out = loop.step()
            if step % 10 == 0:
                kept.append(out)
    assert [finding.verdict for finding in watched.findings] == ["outputs retained"]


@simulated
def test_a_cache_that_is_filled_for_a_hundred_steps_may_be_bounded():
    loop, cache = Loop(), {}
    found_at = None
    with watch() as watched:
        for step in range(110):
            out = loop.step()
            if step not in cache:
                cache[step] = out
            if watched.findings and found_at is None:
                found_at = step
            assert all(f.certainty == "grows, may be bounded" for f in watched.findings)
    assert found_at is not None and found_at > 20


@simulated
def test_what_is_seldom_filled_up_to_a_bound_of_the_code_may_be_bounded():
    """Of what was put in there is little, in however many steps."""
    loop, archive = Loop(), []
    with watch() as watched:
        reported = []
        for step in range(400):
            out = loop.step()
            if step % 4 == 0 and len(archive) < 300:
                archive.append(out)
            reported += watched.findings
    assert {finding.certainty for finding in reported} == {"grows, may be bounded"}


@simulated
def test_a_ring_that_is_far_from_full_may_be_bounded():
    class Ring:
        def __init__(self, capacity):
            self.capacity, self.items, self.place = capacity, [], 0

        def push(self, *item):
            if len(self.items) < self.capacity:
                self.items.append(None)
            self.items[self.place] = item
            self.place = (self.place + 1) % self.capacity

    loop, ring, reported = Loop(), Ring(10_000), []
    with watch() as watched:
        for _ in range(140):
            ring.push(loop.step().detach())
            reported += watched.findings
    assert {finding.certainty for finding in reported} == {"grows, may be bounded"}


@simulated
def test_a_length_that_is_asked_for_something_else_is_no_bound():
    loop, kept, reported = Loop(), [torch.zeros(8, device="cuda")], []
    with watch() as watched:
        for _ in range(300):
            out = loop.step().detach()
            if len(kept) > 0:
                kept.append(out)
            reported += [finding.certainty for finding in watched.findings]
    assert reported[-1] == "leaks"


def test_growth_of_one_kind_in_several_places_is_told_once():
    from oomph.leaks.detector import told_once
    from oomph.leaks.findings import Finding

    def growths(*kinds):
        found = [(kind, Finding("grows", None, growth_bytes=600)) for kind in kinds]
        return [finding.growth_bytes for finding in told_once(found)]

    assert growths("a", "b") == [600, 600]
    assert growths("a", "a", "b", "a") == [200, 200, 600, 200]


@simulated
def test_places_that_one_line_fills_are_one_finding_with_the_bytes_of_all():
    loop, tables = Loop(), [{} for _ in range(4)]
    with watch() as watched:
        for step in range(30):
            loop.step()
            for i, table in enumerate(tables):
                rows = 512 if i else 768  # two kinds
                table[step] = torch.zeros(rows, 64, device="cuda")
    (finding,) = watched.findings
    assert finding.growth_bytes == pytest.approx(576 * KIB, rel=0.1)


@simulated
def test_a_metric_is_to_be_reset():
    class Metric:
        def __init__(self):
            self.seen = []

        def update(self, values):
            self.seen.append(values)

        def reset(self):
            self.seen.clear()

    loop, metric = Loop(), Metric()
    with watch() as watched:
        for _ in range(60):
            metric.update(loop.step().detach())
    (finding,) = watched.findings
    assert "call .reset() of the Metric" in finding.text


@simulated
def test_what_is_an_attribute_of_a_context_is_to_be_saved_for_backward():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.result = x.square()
            return ctx.result

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    loop = Loop()
    with watch() as watched:
        for _ in range(20):
            x = torch.zeros(512, 64, device="cuda", requires_grad=True)
            Square.apply(x)
            loop.step()
    assert "ctx.save_for_backward()" in watched.report().text


@simulated
def test_what_stops_to_grow_is_no_longer_reported():
    loop, kept, reported = Loop(), [], []
    with watch() as watched:
        for size in [512] * 20 + [0] * 40:
            loop.step()
            kept.append(torch.zeros(size, 64, device="cuda"))
            reported.append([finding.certainty for finding in watched.findings])
    assert ["grows, may be bounded"] in reported[:20]
    assert reported[-1] == []


@simulated
def test_what_has_grown_for_a_hundred_steps_is_a_leak():
    loop, kept, reported = Loop(), [], []
    with watch() as watched:
        for _ in range(100):
            loop.step()
            kept.append(torch.zeros(512, 64, device="cuda"))
            reported += [finding.certainty for finding in watched.findings]
    assert reported[0] == "grows, may be bounded"
    assert reported[-1] == "leaks"


@simulated
def test_a_list_made_in_one_function_and_filled_in_another_is_found():
    def record(history, value):
        history.append(value)

    def main():
        history = []
        for _ in range(5):
            record(history, loop.step())

    loop = Loop()
    with watch() as watched:
        main()
    (finding,) = watched.findings
    said = Path(__file__).read_text().splitlines()[finding.line.line - 1]
    assert "history.append(value)" in said
    assert "`history`, a list in " in finding.held_by


@simulated
def test_without_steps_the_calls_of_a_model_are_rounds():
    model, answers = torch.nn.Linear(256, 256).cuda(), {}
    with watch() as watched, torch.no_grad():
        for request in range(60):
            answers[request] = model(torch.zeros(64, 256, device="cuda"))
    (finding,) = watched.findings
    assert (watched.steps, finding.verdict) == (0, "outputs retained")
    assert finding.growth_bytes == 64 * KIB
    said = Path(__file__).read_text().splitlines()[finding.line.line - 1]
    assert "answers[request] = model(" in said


@simulated
@pytest.mark.parametrize("optimizes", [False, True])
def test_calls_with_gradients_are_rounds_early_where_nothing_optimizes(optimizes):
    """As in a simulation whose state goes on with its graph; else they accumulate."""
    model = torch.nn.Linear(256, 256, device="cuda")
    optimizer = torch.optim.SGD(model.parameters()) if optimizes else None
    state = torch.zeros(64, 256, device="cuda")
    with watch() as watched:
        for _ in range(48):
            state = state + model(state)
        verdicts = [finding.verdict for finding in watched.findings]
    assert verdicts == ([] if optimizer else ["graph retained"])


@simulated
def test_lines_are_not_followed_where_a_debugger_does():
    import sys

    def tracer(*_):
        return None

    loop, kept = Loop(), []
    sys.settrace(tracer)
    try:
        with watch() as watched:
            for _ in range(6):
                kept.append(loop.step())
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    (finding,) = watched.findings
    said = Path(__file__).read_text().splitlines()[finding.line.line - 1]
    assert "kept.append(" in said


@simulated
def test_a_model_that_is_copied_while_it_is_watched_has_no_hooks():
    import copy
    import pickle

    loop = Loop()
    with watch():
        loop.step()
        copied = copy.deepcopy(loop.model)
        assert b"oomph" not in pickle.dumps(loop.model)
    assert not copied._forward_hooks


@simulated
def test_memory_that_nothing_in_python_holds_is_reported_by_the_line_that_allocates():
    loop, addresses = Loop(), []
    with watch() as watched:
        for _ in range(40):
            loop.step()
            allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
            addresses.append(allocate(2 * MIB, torch.cuda.current_stream().cuda_stream))
    for address in addresses:
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
    (finding,) = watched.findings
    said = Path(__file__).read_text().splitlines()[finding.line.line - 1]
    assert (finding.verdict, "allocate(2 * MIB" in said) == ("grows", True)


@simulated
def test_graphs_of_the_threads_of_backward_are_no_graphs_of_earlier_steps():
    """Second derivatives: those threads number their nodes by themselves."""
    loop = Loop()
    x = torch.ones(16, 256, device="cuda", requires_grad=True)
    with watch() as watched:
        for _ in range(12):
            loop.step()
            loss = loop.model(x).square().sum()
            for _ in range(3):
                (slope,) = torch.autograd.grad(loss, x, create_graph=True)
                loss = slope.square().sum()
            loss.backward()
    assert not watched.findings


@pytest.mark.parametrize("count", [3, 4, 5, 6])
@simulated
def test_models_that_their_own_gradients_hold_are_found_after_short_runs(count):
    import oomph

    def train():
        model = torch.nn.Linear(256, 256).cuda()
        parameters = list(model.parameters())
        for _ in range(count):
            for parameter in parameters:
                parameter.grad = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loss = model(torch.ones(16, 256, device="cuda")).square().mean()
                loss.backward(create_graph=True)  # the line
            oomph.step()

    with watch() as watched:
        for _ in range(15):
            train()
    for thing in gc.get_objects():
        if isinstance(thing, torch.nn.Parameter):
            thing.grad = None
    (finding,) = watched.findings
    assert finding.verdict == "create_graph"
    line = Path(__file__).read_text().splitlines()[finding.line.line - 1]
    assert line.endswith("# the line")


@simulated
def test_memos_that_fill_up_are_no_leaks_however_often_it_looks_again():
    loop, random_keys = Loop(), random.Random(4)

    @functools.cache
    def basis(key):
        return torch.zeros(128 + 32 * key, 256, device="cuda")

    @functools.cache
    def mask(*keys):
        return torch.zeros(3, 128 + 32 * keys[0], 64, device="cuda")

    with watch() as watched:
        reported = []
        for _ in range(220):
            keys = random_keys.choice(range(4)), random_keys.choice(range(4))
            basis(keys[0]), mask(*keys)
            loop.step()
            reported += watched.findings
    assert all(each.certainty != "leaks" for each in [*reported, *watched.findings])


@simulated
def test_a_list_that_the_code_empties_is_never_called_a_leak():
    loop, buffer = Loop(), []
    with watch() as watched:
        for _ in range(120):
            buffer.append(loop.step())
            if len(buffer) > 1000:
                del buffer[0]
            assert all(f.certainty == "grows, may be bounded" for f in watched.findings)


@pytest.mark.parametrize("full_at", [30, 45, 60])
@simulated
def test_what_has_been_full_for_long_is_not_told_at_the_end(full_at):
    """Between two looks, the later the further apart, memory as a whole shows it."""
    loop, kept = Loop(), []
    with watch() as watched:
        for step in range(2 * full_at):
            loop.step()
            if step < full_at:
                kept.append(torch.zeros(8192, device="cuda"))
    assert watched.findings == []


@simulated
def test_what_is_let_go_of_at_first_hides_no_leak():
    loop, kept = Loop(), []
    before = [torch.zeros(8192, device="cuda") for _ in range(40)]
    with watch() as watched:
        for step in range(40):
            loop.step()
            kept.append(torch.zeros(8192, device="cuda"))
            if step == 6:
                before.clear()
    (finding,) = watched.findings
    assert finding.verdict == "outputs retained"


@simulated
def test_what_comes_in_bursts_has_not_ended_while_it_rests():
    loop, kept = Loop(), []
    with watch() as watched:
        told = []
        for step in range(200):
            loop.step()
            if step % 14 == 0:
                kept.extend(torch.zeros(8192, device="cuda") for _ in range(12))
            told.append(bool(watched.findings))
    first = told.index(True)
    assert all(told[first:])


@simulated
def test_what_was_given_back_is_no_finding_until_there_is_more_of_it():
    loop, kept, told = Loop(), [], []
    with watch() as watched:
        for step in range(320):
            loop.step()
            kept.append(torch.zeros(8192, device="cuda"))
            if step % 80 == 79:
                kept.clear()
            told.append(bool(watched.findings))
    assert any(told[:80])
    assert not any(told[100:])


@simulated
def test_the_traceback_of_the_last_error_is_named():
    import sys

    def fails():
        scores = torch.zeros(512, 1024, device="cuda")
        raise ValueError(scores.shape)

    loop = Loop()
    try:
        fails()
    except ValueError as error:
        sys.last_traceback = error.__traceback__
    try:
        with watch() as watched:
            for _ in range(2):
                loop.step()
    finally:
        del sys.last_traceback
    (finding,) = watched.findings
    assert (finding.verdict, finding.line.function) == ("notebook", "fails")
    assert "2.00 MiB" in finding.note


@simulated
def test_steps_that_the_program_tells_are_enough():
    import oomph

    kept = []
    with watch() as watched:
        for _ in range(5):
            kept.append(torch.zeros(1024, 1024, device="cuda"))
            oomph.step()
    assert [finding.verdict for finding in watched.findings] == ["outputs retained"]


def by_hand(model, rate=0.01):
    """A step of a loop that has no optimizer."""
    for parameter in model.parameters():
        parameter.grad = None
    out = model(torch.ones(16, 256, device="cuda"))
    loss = out.square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
    return loss


@simulated
def test_without_any_optimizer_backward_passes_end_steps():
    gc.collect()  # optimizers of other tests
    model, history = torch.nn.Linear(256, 256).cuda(), []
    with watch() as watched:
        for _ in range(12):
            history.append(by_hand(model))  # the line
    (finding,) = watched.findings
    line = Path(__file__).read_text().splitlines()[finding.line.line - 1]
    assert (finding.verdict, finding.certainty) == ("loss kept", "leaks")
    assert line.endswith("# the line")


@simulated
def test_steps_by_hand_that_keep_nothing_are_no_findings():
    """A network that is unrolled, whose last output the program has."""
    cell, said = torch.nn.RNNCell(64, 64).cuda(), []

    def step(length):
        state = torch.zeros(1, 64, device="cuda")
        for _ in range(length):
            output = state = cell(torch.ones(1, 64, device="cuda"), state)
        output.square().mean().backward()
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        return output

    lengths = random.Random(0)
    with watch() as watched:
        for _ in range(110):
            output = step(lengths.randint(4, 14))
            said += watched.findings
    assert output.shape == (1, 64)
    assert not said


@simulated
def test_an_optimizer_that_waits_ends_the_steps_and_not_backward():
    loop, losses = Loop(), []
    with watch() as watched:
        for _ in range(12):
            loss = loop.model(torch.ones(16, 256, device="cuda")).square().mean()
            loss.backward()
            losses.append(loss)
        losses.clear()
        loop.step()
    assert (watched.steps, watched.findings) == (1, [])


@simulated
def test_two_optimizers_that_take_turns_end_one_step_together():
    loops, kept = (Loop(), Loop()), []
    with watch() as watched:
        for _ in range(5):
            kept.append([loop.step() for loop in loops])
    assert watched.steps == 5
    assert {finding.verdict for finding in watched.findings} == {"outputs retained"}


# ---- assert_no_leaks


@simulated
def test_assert_no_leaks_raises_the_report_of_a_leak():
    import oomph

    loop, kept = Loop(), []
    with watch():
        for _ in range(5):
            kept.append(loop.step())
    with pytest.raises(AssertionError, match=r"outputs retained at .*test_leaks"):
        oomph.assert_no_leaks()


@simulated
def test_assert_no_leaks_passes_where_nothing_leaks():
    import oomph

    loop = Loop()
    with watch():
        for _ in range(5):
            loop.step()
    oomph.assert_no_leaks()


@simulated
def test_assert_no_leaks_says_that_steps_were_too_few():
    import oomph

    with watch():
        Loop().step()
    with pytest.raises(RuntimeError, match="1 steps are too few"):
        oomph.assert_no_leaks()


# ---- The program is as it was


@simulated
def test_no_tensor_is_kept_alive():
    loop, kept = Loop(), []
    with watch() as watched:
        for _ in range(5):
            kept.append(loop.step())
    assert watched.findings
    dead = [weakref.ref(out) for out in kept]
    kept.clear()
    assert [ref() for ref in dead] == [None] * 5


@simulated
def test_variables_of_running_functions_live_no_longer_than_without_a_watch():
    loop, kept, extra = Loop(), [], None
    with watch() as watched:
        for _ in range(5):
            extra = torch.zeros(64 * KIB, device="cuda")
            kept.append(loop.step())
    assert watched.findings
    dead = weakref.ref(extra)
    extra = None
    assert dead() is None


@simulated
def test_tensors_without_memory_are_passed_over_without_a_warning():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        others = [torch.zeros(8, device="cuda")]
    others.append(torch.eye(4, device="cuda").to_sparse())
    loop, kept = Loop(), []
    with warnings.catch_warnings(), watch() as watched:
        warnings.simplefilter("error")
        for _ in range(5):
            kept.append(loop.step())
    assert len(watched.findings) == 1
    del others


@simulated
def test_what_is_differentiated_by_torch_func_is_watched():
    """A call of a model ends within it, where tensors have no memory of their own."""
    from torch.func import functional_call, grad

    loop, x = Loop(), torch.ones(4, 256, device="cuda")
    params = dict(loop.model.named_parameters())

    def loss(p):
        return functional_call(loop.model, p, (x,)).sum()

    def update(old):
        gradients = grad(loss)(old)
        return {name: p - 0.1 * gradients[name] for name, p in old.items()}

    with watch() as watched:
        for _ in range(120):
            params = update(params)  # has the graphs of all steps
    (finding,) = watched.findings
    assert (finding.verdict, finding.certainty) == ("graph retained", "leaks")
    source = Path(__file__).read_text().splitlines()
    assert "# has the graphs" in source[finding.line.line - 1], finding


@pytest.mark.parametrize("rounds", ["_by_steps", "_by_calls"])
@simulated
def test_a_fault_of_the_watch_ends_it_and_not_the_program(rounds):
    import oomph
    from oomph.leaks.detector import Detector

    def fail(detector, scan=False):
        if detector is getattr(watched, rounds):
            raise ZeroDivisionError("a mistake")

    loop, x, said = Loop(), torch.ones(4, 256, device="cuda"), io.StringIO()
    logging.getLogger("oomph").addHandler(logging.StreamHandler(said))
    with mock.patch.object(Detector, "end_round", fail), watch() as watched:
        for _ in range(12):
            if rounds == "_by_steps":
                loop.step()
            else:
                with torch.no_grad():
                    loop.model(x)
    assert said.getvalue().count("watching for leaks has ended") == 1
    assert "ZeroDivisionError: a mistake" in said.getvalue()
    with pytest.raises(RuntimeError, match="ended after . steps, as oomph itself"):
        oomph.assert_no_leaks()
    assert watched.final_report().findings == []


@simulated
def test_what_a_function_got_from_locals_stays_as_it_is():
    loop, kept = Loop(), []
    mine = locals()
    with watch() as watched:
        for _ in range(5):
            kept.append(loop.step())
    assert watched.findings
    assert mine["loop"] is loop
    mine.clear()


@simulated
def test_what_was_put_in_place_is_put_back():
    from torch.utils.hooks import RemovableHandle

    def state():
        return (
            torch.autograd._engine_run_backward,
            torch.nn.Module.train,
            RemovableHandle.__init__,
        )

    before, loop = state(), Loop()
    with watch():
        for _ in range(3):
            handle = loop.model.register_forward_hook(lambda *_: None)
            loop.step()
        assert all(a is not b for a, b in zip(before, state(), strict=True))
    assert state() == before
    handle.remove()


@simulated
def test_watches_may_end_in_any_order():
    before, loop = (torch.autograd._engine_run_backward, torch.nn.Module.train), Loop()
    first, second = watch(), watch()
    loop.step()
    first.stop()
    loop.step()
    second.stop()
    loop.step()
    assert (first.steps, second.steps) == (1, 2)
    gc.collect()
    torch.autograd._engine_run_backward, torch.nn.Module.train = before


@simulated
def test_an_unknown_action_is_an_error():
    with pytest.raises(ValueError, match="count, report, raise"):
        watch(action="shout")


# ---- The setting


def train(setting, *arguments, tmp_path, code=LEAKING):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(code))
    return oomph(
        "run",
        *("--simulate", "1GiB,context=0", "--set", f"leaks:{setting}"),
        *arguments,
        script,
        cwd=tmp_path,
    )


def test_count_says_at_exit_what_leaks(tmp_path):
    result = train("count", tmp_path=tmp_path)
    assert result.code == 0
    assert "1. outputs retained at train.py:11, 2.00 MiB per step" in result.said
    assert result.said.count("outputs retained") == 1


def test_what_grew_until_the_end_is_certain_though_it_is_gone_by_then(tmp_path):
    """The function that had it has returned."""
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch

def main():
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer, kept = torch.optim.SGD(model.parameters(), lr=0.1), {}
    for step in range(60):
        x = torch.ones(2048, 64, device="cuda")
        kept[step] = x
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

main()
"""
    )
    conf = "--simulate", "1GiB,context=0", "--set", "leaks:count"
    result = oomph("run", *conf, script, cwd=tmp_path)
    assert "leaks found in 60 steps:\n1. outputs retained at train.py:9" in result.said


def test_report_says_it_once_it_is_found_too(tmp_path):
    result = train("report", tmp_path=tmp_path)
    assert result.code == 0
    assert result.said.count("outputs retained at train.py:11") == 2


def test_it_is_said_whatever_the_level_of_the_programs_own_log(tmp_path):
    quiet = "import logging; logging.basicConfig(level=logging.ERROR)\n"
    script = tmp_path / "quiet.py"
    script.write_text(quiet + textwrap.dedent(LEAKING))
    options = ["--simulate", "1GiB", "--set", "leaks:count", script]
    assert "leaks found in" in oomph("run", *options).err
    script.write_text(quiet + "logging.disable()\n" + textwrap.dedent(LEAKING))
    assert "leaks found in" not in oomph("run", *options).err


def test_raise_ends_the_step_in_which_it_is_found(tmp_path):
    result = train("raise", tmp_path=tmp_path)
    assert result.code == 1
    assert result.said.count("step") >= 4 and "step 4\n" not in result.out
    assert "LeakError: leaks found in 5 steps:" in result.err


def test_nothing_is_said_of_a_program_that_does_not_leak(tmp_path):
    code = LEAKING.replace("outputs.append(out)", "pass")
    result = train("report", tmp_path=tmp_path, code=code)
    assert (result.code, result.err.count("\n")) == (0, 1)  # the banner


def test_nothing_is_watched_without_the_setting(tmp_path):
    result = train("off", tmp_path=tmp_path)
    assert "outputs retained" not in result.said


def test_the_statistics_say_what_leaks(tmp_path):
    file = tmp_path / "stats.json"
    train("count", "--stats", file, tmp_path=tmp_path)
    (finding,) = json.loads(file.read_text())["0"]["leaks"]["findings"]
    assert (finding["verdict"], finding["line"]["line"]) == ("outputs retained", 11)


def test_watching_without_oomph_says_what_to_do():
    result = run(
        """
        import oomph
        oomph.leaks.watch()
        """
    )
    assert "call oomph.install() before CUDA is used" in result.err


def test_importing_oomph_imports_nothing_of_it():
    result = run("import oomph, sys; print('oomph.leaks' in sys.modules)")
    assert result.out == "False\n"


# ---- What docs/leaks.md shows


def test_the_page_shows_what_its_command_says():
    text = (ROOT / "docs" / "leaks.md").read_text()
    command, shown = re.search(
        r"\$ oomph (run [^\n]*train_leaking\.py[^\n]*)\n```\n\n```text\n(.*?)```",
        text,
        re.S,
    ).groups()
    result = oomph(*command.split(), cwd=ROOT)
    assert result.said == shown
