"""NCCL of the simulated GPU: what ranks tell each other, in time, and how it ends."""

from __future__ import annotations

import random
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from campaign import kills, mismatches
from ranks import QUICKLY, run_ranks
from support import GIB, lines, run

CARD = "1GiB,context=0,memory=values"


# ---- values


def test_reductions_are_those_of_the_cpu_in_each_type():
    found = run_ranks(
        3,
        """
        OPS = {
            dist.ReduceOp.SUM: torch.add,
            dist.ReduceOp.PRODUCT: torch.mul,
            dist.ReduceOp.MAX: torch.maximum,
            dist.ReduceOp.MIN: torch.minimum,
        }
        TYPES = [torch.uint8, torch.int8, torch.int32, torch.int64]
        TYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
        def given(by, count, dtype):
            made = torch.Generator().manual_seed(by)
            return torch.randint(1, 5, (count,), generator=made).to(dtype)
        checked = 0
        for dtype in TYPES:
            for op, combine in OPS.items():
                for count in (1, size - 1, 10_001):
                    parts = [given(r, count, dtype) for r in range(size)]
                    wanted = parts[0]
                    for part in parts[1:]:
                        wanted = combine(wanted, part)
                    tensor = parts[rank].to(device)
                    dist.all_reduce(tensor, op)
                    assert torch.equal(tensor.cpu(), wanted), (dtype, op, count)
                    tensor = parts[rank].to(device)
                    dist.reduce(tensor, 1, op)
                    held = wanted if rank == 1 else parts[rank]
                    assert torch.equal(tensor.cpu(), held), (dtype, op, count)
                    parts = [given(r, size * count, dtype) for r in range(size)]
                    wanted = parts[0]
                    for part in parts[1:]:
                        wanted = combine(wanted, part)
                    out = torch.empty(count, dtype=dtype, device=device)
                    dist.reduce_scatter_tensor(out, parts[rank].to(device), op)
                    own = wanted[rank * count : (rank + 1) * count]
                    assert torch.equal(out.cpu(), own), (dtype, op, count)
                    checked += 3
        print(checked, "checked")
        """,
        CARD,
    )
    assert all("288 checked" in each.out for each in found)


def test_each_sum_of_a_ring_is_rounded_to_the_type():
    run_ranks(
        4,
        """
        parts = [torch.randn(1000, generator=torch.Generator().manual_seed(r))
                 for r in range(size)]
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            own = [part.to(dtype) for part in parts]
            for average in (False, True):
                scale = torch.tensor(1 / size if average else 1, dtype=dtype)
                wanted = []
                for j in range(size):  # a part starts behind the rank that it is of
                    ring = [own[(j + 1 + i) % size] * scale for i in range(size)]
                    total = ring[0][j * 250 : (j + 1) * 250]
                    for other in ring[1:]:
                        total = total + other[j * 250 : (j + 1) * 250]
                    wanted.append(total)
                tensor = own[rank].to(device)
                op = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
                dist.all_reduce(tensor, op)
                assert torch.equal(tensor.cpu(), torch.cat(wanted)), (dtype, average)
        """,
        CARD,
    )


def test_what_is_gathered_scattered_and_sent_arrives():
    run_ranks(
        3,
        """
        def of(r, count=7): return torch.arange(count) + 100.0 * r
        gathered = [torch.empty(7, device=device) for _ in range(size)]
        dist.all_gather(gathered, of(rank).to(device))
        assert all(torch.equal(g.cpu(), of(r)) for r, g in enumerate(gathered))
        tensor = of(rank).to(device)
        dist.broadcast(tensor, 2)
        assert torch.equal(tensor.cpu(), of(2))
        out = torch.empty(6, device=device)
        dist.all_to_all_single(out, of(rank, 6).to(device))
        wanted = torch.cat([of(r, 6)[2 * rank : 2 * rank + 2] for r in range(size)])
        assert torch.equal(out.cpu(), wanted)
        # parts of different lengths: from rank r come r + 1 numbers
        given = of(rank, size * (rank + 1)).to(device)
        out = torch.empty(sum(range(1, size + 1)), device=device)
        dist.all_to_all_single(out, given, [1, 2, 3], [rank + 1] * size)
        wanted = [of(r, 9)[rank * (r + 1) : (rank + 1) * (r + 1)] for r in range(size)]
        assert torch.equal(out.cpu(), torch.cat(wanted))
        # several messages between two ranks, in one group, with a large one among them
        counts, after, before = (5, 3 << 20, 1), (rank + 1) % size, (rank - 1) % size
        into = [torch.empty(c, device=device) for c in counts]
        ops = [dist.P2POp(dist.isend, (of(rank, c) % 977).to(device), after)
               for c in counts]
        ops += [dist.P2POp(dist.irecv, i, before) for i in into]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for c, i in zip(counts, into):
            assert torch.equal(i.cpu(), of(before, c) % 977)
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": rank, "text": "x" * 50 * rank})
        assert [o["rank"] for o in objects] == [0, 1, 2]
        """,
        CARD,
    )


def test_groups_of_ranks_work_side_by_side_on_streams_of_their_own():
    run_ranks(
        4,
        """
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        own, other = pairs[rank // 2], across[rank % 2]
        side = torch.cuda.Stream()
        for turn in range(5):
            a = torch.full((1000,), rank + 1.0, device=device)
            b = torch.full((1000,), 10.0 * (rank + 1), device=device)
            side.wait_stream(torch.cuda.current_stream())
            # Half of the ranks call them in the other order: on two streams they may.
            def first(): dist.all_reduce(a, group=own)
            def second():
                with torch.cuda.stream(side):
                    dist.all_reduce(b, group=other)
            for call in (first, second) if rank < 2 else (second, first):
                call()
            torch.cuda.synchronize()
            assert a[0].item() == (3 if rank < 2 else 7), a[0]
            assert b[0].item() == (40 if rank % 2 == 0 else 60), b[0]
        """,
        CARD,
    )


def test_a_graph_that_has_captured_a_reduction_reduces_at_each_replay():
    run_ranks(
        2,
        """
        held = torch.ones(100, device=device)
        dist.all_reduce(held)  # makes the communicator
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            held.add_(rank)
            dist.all_reduce(held)
        held.fill_(1.0)
        for wanted in (3.0, 7.0, 15.0):
            graph.replay()
            assert held[7].item() == wanted, held[7]
        del graph  # while there is a communicator
        """,
        CARD,
    )


def test_one_process_may_be_all_ranks():
    found = run(
        """
        import torch
        from torch import nn
        parts = [torch.full((5,), i + 1.0, device=f"cuda:{i}") for i in range(3)]
        torch.cuda.nccl.all_reduce(parts)
        print([p.tolist() for p in parts] == [[6.0] * 5] * 3)
        torch.manual_seed(0)
        plain = nn.Linear(4, 3)
        model = nn.DataParallel(nn.Linear(4, 3).cuda())
        model.module.load_state_dict(plain.state_dict())
        x = torch.randn(9, 4)
        plain(x).square().sum().backward()
        model(x.cuda()).square().sum().backward()
        torch.testing.assert_close(model.module.weight.grad.cpu(), plain.weight.grad)
        print("equal")
        """,
        card=f"{CARD},devices=3",
    )
    assert found.out.split() == ["True", "equal"], found.said


def test_numbers_that_the_host_wrote_are_sent_though_kernels_compute_nothing():
    found = run_ranks(
        2,
        """
        objects = [None] * size
        dist.all_gather_object(objects, ["rank", rank])
        count = torch.tensor([5 + rank], device=device)
        torch.ones(1000, device=device).add_(1)  # kernels between change nothing of it
        dist.all_reduce(count)
        print(objects, count.item())
        """,
        "h100,context=0",
    )
    assert all("[['rank', 0], ['rank', 1]] 11" in each.out for each in found)


@pytest.mark.parametrize("card", ["h100,context=0", "1GiB,context=0"])
def test_objects_and_counts_of_other_ranks_arrive_though_kernels_compute_nothing(card):
    found = run_ranks(
        2,
        """
        objects = [None] * size
        dist.all_gather_object(objects, "x" * (30 * rank + 1))
        told = [{"of": "rank 0"} if rank == 0 else None]
        dist.broadcast_object_list(told, src=0)
        gathered = [None] * size if rank == 0 else None
        dist.gather_object({"from": rank}, gathered)
        scattered = [None]
        dist.scatter_object_list(scattered, [["a"], ["b", "c"]], src=0)
        counts = torch.tensor([rank + 1, 3], device=device)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        tokens = torch.empty(int(theirs.sum()), 64, device=device)
        dist.all_to_all_single(
            tokens, torch.empty(int(counts.sum()), 64, device=device),
            theirs.tolist(), counts.tolist(),
        )
        print([len(o) for o in objects], told, gathered, scattered, tokens.shape[0])
        """,
        card,
    )
    begin = "[1, 31] [{'of': 'rank 0'}]"
    assert found[0].out == f"{begin} [{{'from': 0}}, {{'from': 1}}] [['a']] 3\n"
    assert found[1].out == f"{begin} None [['b', 'c']] 6\n"


def test_the_sizes_of_many_parameters_are_compared_though_kernels_compute_nothing():
    """As DDP does: they take more than a page."""
    found = run_ranks(
        2,
        """
        layers = [torch.nn.Linear(4, 4) for _ in range(600)]
        model = torch.nn.Sequential(*layers).to(device)
        torch.nn.parallel.DistributedDataParallel(model)
        print("alike")
        """,
        "h100,context=0",
    )
    assert [each.out for each in found] == ["alike\n"] * 2


def test_floats_of_8_bits_are_sent_and_not_reduced():
    found = run_ranks(
        2,
        """
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            own = (torch.arange(8.0, device=device) + rank).to(dtype)
            many = torch.empty(16, device=device, dtype=dtype)
            dist.all_gather_into_tensor(many, own)
            parts = torch.empty(8, device=device, dtype=dtype)
            dist.all_to_all_single(parts, own)
            print(many.float().tolist()[::5], parts.float().tolist()[::3])
        try:
            dist.all_reduce(own)
        except dist.DistBackendError as error:
            print(str(error).splitlines()[-1])
        """,
        CARD,
    )
    first, second, refused = found[0].out.splitlines()
    assert first == second == "[0.0, 5.0, 3.0, 8.0] [0.0, 3.0, 3.0]"
    assert "float8_e5m2" in refused


# ---- what it takes


def test_nccl_takes_device_memory_and_time_as_the_card_has_it():
    code = """
        tensor = torch.empty(64 << 20, device=device)
        dist.all_reduce(tensor)
        free, total = torch.cuda.mem_get_info()
        taken = total - free - torch.cuda.memory_reserved()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        dist.all_reduce(tensor)
        end.record()
        end.synchronize()
        print(taken >> 20, begin.elapsed_time(end))
        """
    taken, ms = {}, {}
    for card in ("h100", "rtx4090"):
        found = run_ranks(2, code, f"{card},context=0")
        taken[card], ms[card] = map(float, found[0].out.split())
    assert taken == {"h100": 24 * 12 + 256, "rtx4090": 4}
    bus = {card: 64 * 4 / 1024 * GIB / (t / 1e3) for card, t in ms.items()}
    assert 0.7 * 450e9 < bus["h100"] < 0.82 * 450e9, bus
    assert 0.7 * 25e9 < bus["rtx4090"] < 0.82 * 25.2e9, bus


# A collective, and 67 ms of products on another stream. Rank 1 comes to it when rank 0
# says so, in real time; on the clock it comes as soon.
BESIDE = """
    store = dist.distributed_c10d._get_default_store()
    x = torch.empty(8192, 8192, device=device)
    given = torch.empty(1 << 20, device=device)
    side = torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        dist.barrier()
        torch.cuda.synchronize()
    def begin_collective():
        begin.record()
        dist.all_reduce(given)
        end.record()
    if rank == 0:
        begin_collective()
        with torch.cuda.stream(side):
            for _ in range(3):
                x @ x
    """


def test_a_rank_that_comes_late_in_real_time_costs_nothing_on_the_clock():
    found = run_ranks(
        2,
        BESIDE
        + """
    if rank == 0:
        side.synchronize()
        store.set("come", "now")
    else:
        store.wait(["come"])
        begin_collective()
    end.synchronize()
    print(begin.elapsed_time(end))
    """,
        "h100,context=0",
    )
    for each in found:
        assert 0 < float(each.out) < 1, each.out


def test_who_waits_for_others_lets_them_come_before_the_clock_moves_on():
    found = run_ranks(
        2,
        BESIDE
        + """
    if rank == 0:
        store.set("come", "now")
    else:
        store.wait(["come"])
        begin_collective()
    end.synchronize()
    print(side.query())
    """,
        "h100,context=0",
    )
    assert found[0].out == "False\n"


# ---- what goes wrong


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("dist.all_reduce(x)", "dist.broadcast(x, 0)", ("all-reduce", "broadcast")),
        ("dist.all_reduce(x)", "dist.all_reduce(x[:5])", ("of 8 float32", "of 5")),
        ("dist.all_reduce(x)", "dist.all_reduce(x.half())", ("float32", "float16")),
        ("dist.broadcast(x, 0)", "dist.broadcast(x, 1)", ("root 0", "root 1")),
        (
            "dist.all_reduce(x)",
            "dist.all_reduce(x, dist.ReduceOp.MAX)",
            ("sum", "maximum"),
        ),
    ],
)
def test_ranks_that_call_different_things_are_named_with_their_lines(
    first, second, told
):
    found = run_ranks(
        2,
        f"""
        import time
        x = torch.ones(8, device=device)
        dist.all_reduce(x)

        if rank == 0:
            {first}  # line 16
        else:
            {second}  # line 18
        try:
            while True:
                dist.all_reduce(x)
                time.sleep(0.01)
        except dist.DistBackendError as error:
            print(error)
        sys.stdout.flush()
        os._exit(7)
        """,
        CARD,
        ends=False,
        **QUICKLY,
    )
    for each in found:
        assert each.code in (7, -signal.SIGABRT), each.said  # 2.15 ends the process
        line, *_ = lines(each.said, "ranks of a communicator call different things")
        one, other = line.split("; ")
        assert "rank 0: " in one and told[0] in one and ":16" in one, line
        assert "rank 1: " in other and told[1] in other and ":18" in other, line


def said_by_ranks(count: int, code: str) -> list[str]:
    """What ranks say that end by themselves or by PyTorch, each in turn."""
    found = run_ranks(count, code, CARD, ends=False, **QUICKLY)
    return [each.said for each in found]


def test_a_rank_that_has_left_is_named_by_one_that_waits_for_it():
    said = said_by_ranks(
        2,
        """
        x = torch.ones(8, device=device)
        dist.all_reduce(x)
        if rank == 0:
            dist.broadcast(x, 0)
            torch.cuda.synchronize()
        else:
            dist.destroy_process_group()
        """,
    )
    wanted = "rank 1 has left the communicator, and rank 0 waits for it: "
    assert f"{wanted}rank 0: broadcast of 8 float32, root 0 at <string>:14" in said[0]


def test_a_message_that_nobody_receives_is_named():
    said = said_by_ranks(
        2,
        """
        import time
        x = torch.ones(8, device=device)
        dist.all_reduce(x)
        if rank == 1:
            dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 0)])
        torch.cuda.synchronize()
        if rank == 0:
            time.sleep(2)  # else it may leave before the message is there
        dist.destroy_process_group()
        """,
    )
    assert "a message is never received: " in said[0]
    assert "rank 1: send of 8 float32, to rank 0 at <string>:15" in said[0]
    assert "never received" not in said[1]


@pytest.mark.long
def test_ranks_that_wait_for_each_other_in_two_communicators_are_named():
    said = said_by_ranks(
        3,
        """
        x = torch.ones(8, device=device)
        dist.all_reduce(x)
        if rank == 0:
            dist.send(x, 1)  # PyTorch makes a communicator of two ranks for it
        else:
            dist.all_reduce(x)
        torch.cuda.synchronize()
        """,
    )
    wanted = "ranks wait for each other, and none goes on: rank 0: at <string>:14; "
    wanted += "rank 1: all-reduce of 8 float32, sum at <string>:16"
    assert wanted in "".join(said)


def test_watchdogs_that_ask_after_events_do_not_hide_that_no_rank_goes_on():
    case = mismatches.draw(530792611)  # rank 0 makes a group, two wait for it elsewhere
    said = mismatches.run(case)
    assert not mismatches.judge(case, said)
    assert said.seconds < mismatches.NAMED_S, said


def test_ranks_that_end_without_a_word_are_no_error_for_who_waits_for_none():
    found = run_ranks(
        2,
        """
        import ctypes, time
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))  # kept for ever
        x = torch.ones(8, device=device)
        dist.all_reduce(x)
        torch.cuda.synchronize()
        if rank == 0:
            time.sleep(3)
        print(x[0].item())
        """,
        CARD,
        ends=False,
    )
    assert [each.out for each in found] == ["2.0\n", "2.0\n"]
    assert "oomph: " not in found[0].said


def test_a_rank_whose_program_has_ended_is_named_by_who_waits_for_it():
    said = said_by_ranks(
        2,
        """
        import ctypes
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))  # kept for ever
        x = torch.ones(8, device=device)
        dist.all_reduce(x)
        torch.cuda.synchronize()
        if rank == 1:
            raise SystemExit("enough")
        dist.broadcast(x, 0)
        torch.cuda.synchronize()
        """,
    )
    assert re.search(
        r"the process \d+ of rank 1 has ended while rank 0 was in a communicator "
        r"with it: rank 0: broadcast of 8 float32, root 0 at <string>:18; rank 1: all-",
        said[0],
    ), said[0]


@pytest.mark.parametrize(
    ("call", "described"),
    [
        ("dist.broadcast(x, 0)", "broadcast of 8 float32, root 0"),
        ("dist.all_reduce(x, group=first)", "all-reduce of 8 float32, sum"),
        (
            "(dist.recv if rank else dist.send)(x, 1 - rank)",
            "receive of 8 float32, from rank 0",
        ),
    ],
)
def test_a_rank_that_has_left_is_named_by_its_last_call(call, described):
    said = said_by_ranks(
        2,
        f"""
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
        x = torch.ones(8, device=device)
        dist.all_reduce(x)
        dist.all_reduce(x, group=first)  # of all, too, and made later
        dist.broadcast(x, 0)
        {call}
        if rank == 0:
            dist.all_reduce(x, group=second)
        torch.cuda.synchronize()
        dist.destroy_process_group()
        """,
    )
    wanted = f"rank 1 left after {described} at <string>:16"
    assert f"none goes on: rank 0: at <string>:18; {wanted}" in said[0]


@pytest.mark.long
def test_a_rank_that_does_something_else_is_waited_for():
    run_ranks(
        3,
        """
        import time
        first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
        x = torch.ones(8, device=device)
        for group in (None, first, second):
            dist.all_reduce(x, group=group)
        def sleep():
            time.sleep(4.5)
        def work():
            until, a = time.monotonic() + 4.5, torch.randn(300, 300)
            while time.monotonic() < until:
                a = torch.linalg.qr(a).Q
        for delay in (sleep, work):
            x.fill_(1.0)
            if rank == 2:
                delay()
            if rank > 0:  # 1 waits for 2
                dist.all_reduce(x, group=second)
                torch.cuda.synchronize()
            if rank < 2:  # and 0 for 1
                dist.all_reduce(x, group=first)
                torch.cuda.synchronize()
            assert x[0].item() == (2.0 if rank == 2 else 3.0), x
        """,
        CARD,
    )


def test_what_a_rank_has_called_goes_on_while_it_does_something_else():
    found = run_ranks(
        2,
        """
        x = torch.ones(1000, device=device)
        dist.all_reduce(x)
        torch.cuda.synchronize()
        store = dist.distributed_c10d._get_default_store()
        dist.all_reduce(x)
        if rank == 0:
            store.wait(["rank 1 is done"])
        torch.cuda.synchronize()
        print(x[0].item())
        if rank == 1:
            store.set("rank 1 is done", "")
        """,
        CARD,
    )
    assert [each.out for each in found] == ["4.0\n", "4.0\n"]


# Each differs from run to run; tests/campaign/mismatches.py has as many as one likes.
@pytest.mark.long
def test_ranks_of_random_programs_are_named_where_they_part():
    first = random.SystemRandom().randrange(10**9)
    print(f"seeds from {first}")
    for seed in range(first, first + 12):
        case = mismatches.draw(seed)
        fault = mismatches.judge(case, mismatches.run(case))
        assert not fault, f"seed {seed}: {fault}\n{case.program}"


# Random, as those above: tests/campaign/kills.py.
def test_a_rank_that_is_killed_ends_the_others_with_an_error_and_leaves_nothing():
    first = random.SystemRandom().randrange(10**9)
    print(f"seeds from {first}")
    before = kills.shared_memory()
    with ThreadPoolExecutor(2) as pool:
        cases = [kills.draw(seed) for seed in range(first, first + 6)]
        for case, fault in zip(cases, pool.map(kills.run, cases), strict=False):
            assert not fault, f"{case}: {fault}"
    assert kills.shared_memory() <= before


def test_what_is_not_simulated_is_refused_by_its_name():
    found = run(
        """
        import ctypes
        nccl = ctypes.CDLL(None)
        window = ctypes.c_void_p()
        print(nccl.ncclCommWindowRegister(None, None, 0, ctypes.byref(window), 0))
        nccl.ncclGetLastError.restype = ctypes.c_char_p
        print(nccl.ncclGetLastError(None).decode())
        """,
        card=CARD,
    )
    assert found.out.startswith("5\n"), found.said
    assert "ncclCommWindowRegister is not part of the simulated GPU" in found.out
