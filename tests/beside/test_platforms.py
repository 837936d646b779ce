"""Platforms that lack a part of CUDA: what works there, and what one is told."""

from __future__ import annotations

from support import lines, oomph, run

CONF = "reserve:0,host_limit:1GiB"
FILL = """
    import torch, oomph
    try:
        kept = [torch.empty(25 << 20, device="cuda") for _ in range(7)]
    except torch.OutOfMemoryError as error:
        print(error)
    print(oomph.stats()["rescues"])
"""
ONE_MEMORY = "512MiB,context=0,integrated=yes"


def test_where_cpu_and_gpu_share_memory_nothing_is_offloaded_and_that_is_reported():
    found = run(FILL, card=ONE_MEMORY, conf=CONF)
    assert "uses the CPU's: offloading would free nothing" in found.out
    assert found.out.endswith("0\n")
    assert len(lines(found.err, "GPU 0 has no memory of its own")) == 1


def test_there_asking_for_offload_is_in_vain_and_nothing_is_told_of_it():
    found = run(FILL, card=ONE_MEMORY, conf=CONF + ",offload:on-oom")
    assert "no room for 100.00 MiB" in found.out
    assert lines(found.err, "has no memory of its own") == []


def test_a_card_with_a_fast_link_to_the_cpu_and_memory_of_its_own_offloads():
    found = run(FILL, card="512MiB,gpu=gh200,context=0", conf=CONF)
    assert found.out == "2\n"
    assert lines(found.err, "has no memory of its own") == []


def test_the_version_says_whose_memory_the_gpu_has():
    for card, whose in (("gb10", "the CPU's"), ("gh200", "its own")):
        (line,) = lines(oomph("--version", card=card).out, "memory of the GPU")
        assert line.startswith(f"memory of the GPU: {whose}")


def test_where_no_memory_can_be_shared_between_processes_all_else_works():
    found = run(
        FILL
        + """
    from torch.multiprocessing.reductions import reduce_tensor
    try:
        reduce_tensor(kept[0])
    except RuntimeError as error:
        print(error)
    """,
        card="512MiB,context=0,share=refused",
        conf=CONF,
    )
    assert found.out.splitlines()[0] == "2"
    assert "that other processes can use: share the tensor on the CPU" in found.out


def test_memory_for_network_cards_that_cannot_be_used_is_not_made_as_on_wsl():
    found = run(FILL, card="512MiB,context=0,rdma=refused", conf=CONF)
    assert found.out == "2\n"


def test_without_virtual_memory_management_the_error_says_what_to_do():
    found = run(FILL, card="512MiB,context=0,vmm=no", conf=CONF)
    assert found.code == 1
    (line,) = lines(found.err, "device 0 has no virtual memory management")
    assert "cannot run on this GPU" in line
