"""oomph.stats(): every figure explained, and the same as PyTorch's where shared."""

import torch
from support import MIB, Simulated

simulated = Simulated("128MiB,context=0", "reserve:0,host_limit:256MiB,host_ahead:0")


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


@simulated
def test_every_figure_is_explained_and_no_other():
    import oomph
    from oomph.memory import metrics

    assert set(oomph.stats()) - set(torch.cuda.memory_stats()) == set(metrics.OWN)


@simulated
def test_what_pytorch_gives_too_has_the_same_value():
    import oomph

    kept = [take(100 * MIB), take(3 * MIB), take(40 * MIB), take(1000)]
    del kept[1]
    ours, torchs = oomph.stats(), torch.cuda.memory_stats()
    shared = set(ours) & set(torchs)
    assert {key: ours[key] for key in shared} == {key: torchs[key] for key in shared}
    absent = {key for key in torchs if key not in ours}
    assert absent == {"max_split_size"} | {k for k in torchs if "oversize" in k}
    del kept


@simulated
def test_device_and_host_bytes_are_told_apart():
    import oomph

    kept = [take(128 * MIB), take(40 * MIB)]
    now = oomph.stats()
    assert now["device_bytes"] == 128 * MIB
    assert now["host_bytes"] == now["host_block_bytes"] == 40 * MIB
    assert torch.cuda.memory_reserved() == 168 * MIB
    del kept


@simulated
def test_rescues_are_counted_by_step():
    import oomph

    before = oomph.stats()
    for _ in range(2):
        kept = [take(128 * MIB), take(8 * MIB), take(9 * MIB)]
        del kept
        oomph.step()
    now = oomph.stats()
    assert now["rescues"] - before["rescues"] == 4
    assert now["rescued_bytes"] - before["rescued_bytes"] == 34 * MIB
    assert now["steps"] - before["steps"] == 2
    assert now["step_rescues"] == 2


@simulated
def test_the_rescues_of_the_last_hundred_steps_are_reported_newest_last():
    import oomph

    before = oomph.stats()["steps"]
    for step in range(102):
        other = 8 * MIB + step * 512  # what repeats is predicted, and no rescue
        kept = [take(128 * MIB)] + [take(other) for _ in range(step % 3)]
        del kept
        oomph.step()
        if step == 4 and before == 0:
            assert oomph.stats()["rescues_last_steps"] == [0, 1, 2, 0, 1]
    reported = oomph.stats()["rescues_last_steps"]
    assert reported == [step % 3 for step in range(2, 102)]
    oomph.stats()["rescues_last_steps"].clear()
    assert oomph.stats()["rescues_last_steps"] == reported


@simulated
def test_bytes_used_on_the_host_are_reported_by_step_though_nothing_is_rescued():
    import oomph

    oomph._C.predict_host(0, 4 * MIB, 4 * MIB)
    before = oomph.stats()
    for _ in range(3):
        kept = [take(128 * MIB), take(8 * MIB), take(9 * MIB)]
        del kept
        oomph.step()
    oomph._C.predict_host(0, 0, 0)
    now = oomph.stats()
    assert now["step_rescues"] == 0
    assert now["step_host_used_bytes"] == 17 * MIB
    assert now["host_used_bytes"] - before["host_used_bytes"] == 3 * 17 * MIB


@simulated
def test_what_stays_on_the_host_is_used_there_in_each_step():
    import oomph

    weight = take(20 * MIB)
    oomph.evict(weight)
    for _ in range(3):
        oomph.step()
        assert oomph.stats()["step_host_used_bytes"] == 20 * MIB
    oomph.promote(weight)
    oomph.step()
    assert oomph.stats()["step_host_used_bytes"] == 0


@simulated
def test_peaks_are_reset_with_pytorchs():
    import oomph

    kept = [take(128 * MIB), take(40 * MIB)]
    del kept
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert oomph.stats()["device_bytes_peak"] == 0
    assert oomph.stats()["host_bytes_peak"] == 0


@simulated
def test_an_optimizer_ends_a_step():
    import oomph

    before = oomph.stats()["steps"]
    parameter = torch.nn.Parameter(torch.ones(10, device="cuda"))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.sum().backward()
    optimizer.step()
    assert oomph.stats()["steps"] == before + 1


@simulated
def test_statistics_need_no_device_in_use():
    import oomph

    assert oomph.stats(0)["page_bytes"] == 2 * MIB
