"""When nothing may be offloaded: strict runs, and regions of a program."""

import threading

import pytest
import torch
from support import MIB, Simulated

CARD = "64MiB,context=0"
COMMON = "reserve:0,host_ahead:0,host_limit:256MiB"
on_oom = Simulated(CARD, COMMON)
strict = Simulated(CARD, f"{COMMON},strict:yes")
always = Simulated(CARD, f"{COMMON},offload:always")
strict_always = Simulated(CARD, f"{COMMON},strict:yes,offload:always")

REGION = r"CUDA out of memory\..*nothing is offloaded within oomph\.no_offload\(\)"


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


# ---- Settings


@strict
def test_a_strict_run_ends_where_others_are_rescued():
    import oomph

    kept = take(60 * MIB)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(20 * MIB)
    (text,) = caught.value.args
    assert text.startswith("CUDA out of memory. Tried to allocate 20.00 MiB.")
    assert "oomph: no room for 20.00 MiB" in text
    assert "the device is 16.00 MiB short, and strict:yes does not allow" in text
    assert oomph.stats()["rescues"] == oomph.stats()["host_bytes"] == 0
    del kept


@strict
def test_a_strict_run_that_fits_is_left_alone():
    kept = [take(30 * MIB), take(34 * MIB)]
    del kept


@always
def test_always_sends_what_forward_saves_from_the_first_step_on():
    import oomph

    x = torch.ones(4 * MIB // 4, device="cuda", requires_grad=True)
    for _ in range(2):
        y = torch.nn.Sequential(torch.nn.Sigmoid(), torch.nn.Sigmoid())(x)
        sent_bytes = oomph.stats()["sent_bytes"]
        y.sum().backward()
        oomph.step()
    now = oomph.stats()
    assert sent_bytes >= 2 * 4 * MIB and now["fetched_bytes"] > 0
    assert now["rescues"] == 0
    assert oomph.planner.explain()[0]["text"].startswith("GPU 0: offload:always is set")


@always
def test_always_sends_nothing_within_a_region():
    import oomph

    before = oomph.stats()["sent_bytes"]
    x = torch.ones(4 * MIB // 4, device="cuda", requires_grad=True)
    with oomph.no_offload():
        torch.nn.Sigmoid()(x).sum().backward()
    assert oomph.stats()["sent_bytes"] == before


@strict_always
def test_what_is_planned_is_no_rescue_that_strict_would_forbid():
    import oomph

    x = torch.ones(4 * MIB // 4, device="cuda", requires_grad=True)
    torch.nn.Sequential(*(torch.nn.Sigmoid() for _ in range(30)))(x).sum().backward()
    assert oomph.stats()["rescues"] == 0
    assert oomph.stats()["sent_bytes"] > 64 * MIB


@always
def test_always_is_rescued_too():
    import oomph

    kept = [take(64 * MIB), take(20 * MIB)]
    assert oomph.stats()["rescues"] == 1
    del kept


# ---- Regions


@on_oom
def test_within_a_region_what_does_not_fit_is_an_error_that_names_it():
    import oomph

    kept = [take(64 * MIB)]
    with oomph.no_offload(), pytest.raises(torch.OutOfMemoryError, match=REGION):
        take(20 * MIB)
    kept.append(take(20 * MIB))
    assert oomph.stats()["host_block_bytes"] == 20 * MIB
    del kept


@on_oom
def test_a_region_ends_however_it_is_left():
    import oomph

    kept = [take(64 * MIB)]
    with pytest.raises(KeyError), oomph.no_offload():
        raise KeyError
    kept.append(take(20 * MIB))
    del kept


@on_oom
def test_a_region_can_be_entered_within_itself():
    import oomph

    kept = [take(64 * MIB)]
    region = oomph.no_offload()
    with region:
        with region, oomph.no_offload():
            pass
        with pytest.raises(torch.OutOfMemoryError, match=REGION):
            take(20 * MIB)
    kept.append(take(20 * MIB))
    del kept


@on_oom
def test_a_function_can_be_a_region():
    import oomph

    @oomph.no_offload()
    def work(depth: int) -> torch.Tensor:
        return work(depth - 1) if depth else take(20 * MIB)

    kept = [take(64 * MIB)]
    with pytest.raises(torch.OutOfMemoryError, match=REGION):
        work(3)
    kept.append(take(20 * MIB))
    del kept


@on_oom
def test_what_lies_on_the_host_stays_usable_in_a_region():
    import oomph

    kept = [take(64 * MIB), take(20 * MIB)]
    with oomph.no_offload():
        kept[1].fill_(3)
        assert oomph.stats()["host_block_bytes"] == 20 * MIB
    del kept


class Hungry(torch.autograd.Function):
    """Its backward takes more than the card has."""

    threads: list[int]

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        Hungry.threads = [threading.get_ident()]
        take(80 * MIB)
        return gradient


@on_oom
def test_a_region_holds_in_the_threads_of_backward():
    import oomph

    loss = Hungry.apply(torch.ones(4, device="cuda", requires_grad=True)).sum()
    with oomph.no_offload(), pytest.raises(torch.OutOfMemoryError, match=REGION):
        loss.backward(retain_graph=True)
    assert Hungry.threads != [threading.get_ident()]
    loss.backward()


@on_oom
def test_a_region_of_one_thread_holds_for_all_until_the_last_ends():
    import oomph

    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with oomph.no_offload():
            inside.set()
            leave.wait()

    kept = [take(64 * MIB)]
    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    with oomph.no_offload():
        pass
    with pytest.raises(torch.OutOfMemoryError, match=REGION):
        take(20 * MIB)
    leave.set()
    thread.join()
    kept.append(take(20 * MIB))
    del kept
