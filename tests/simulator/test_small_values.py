"""Small values are known in *shapes*: what programs send through a GPU to decide by."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from samples import called, is_sized, tensors
from support import Simulated
from torch.testing._internal.common_methods_invocations import op_db

known = Simulated("rtx4090", None)

# Their result is whatever lies there.
NOT_WRITTEN = {"as_strided", "empty_like", "new_empty", "new_empty_strided"}
SMALL_BYTES = 4096


def is_small(sample: Any) -> bool:
    return all(
        0 < each.numel() * each.element_size() <= SMALL_BYTES
        and each.layout == torch.strided
        and not each.is_conj()
        for each in tensors([sample.input, *sample.args, *sample.kwargs.values()])
    )


def results(op: Any, sample: Any, device: str) -> list[torch.Tensor] | None:
    """What an operator gives on a device; ``None`` if it takes no such arguments."""
    try:
        found = called(op, sample, device)
        torch.cuda.synchronize()  # a copy to the CPU may not wait
        return [each.cpu() for each in found]
    except Exception:  # whatever it says: another device, or a library, may not do it
        return None


def verdict(got: torch.Tensor, wanted: torch.Tensor) -> str:
    if got.shape != wanted.shape:
        return "unknown"
    a, b = got.double(), wanted.double()
    if torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True):
        return "right"
    return "wrong" if got.any() else "unknown"


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["int64", "bool", "float32"])
@known
def test_pytorchs_own_samples_of_its_operators_give_what_the_cpu_gives(dtype):
    found: Counter[str] = Counter()
    for op in op_db:
        if getattr(torch, dtype) not in op.dtypes or op.name in NOT_WRITTEN:
            continue
        if is_sized(op):  # test_sized_operators.py has these
            continue
        for sample in list(op.sample_inputs("cpu", getattr(torch, dtype)))[:2]:
            wanted = results(op, sample, "cpu") if is_small(sample) else None
            got = results(op, sample, "cuda") if wanted is not None else None
            if wanted is None or got is None or "device" in sample.kwargs:
                continue
            for ours, theirs in zip(got, wanted, strict=True):
                if theirs.layout != torch.strided or theirs.is_complex():
                    continue
                found[verdict(ours, theirs)] += 1
                assert verdict(ours, theirs) != "wrong", (op.name, ours, theirs)
    assert found["right"] > 10 * found["unknown"], found


@known
def test_what_is_written_in_part_keeps_its_other_values():
    x = torch.zeros(4, 4, dtype=torch.int32, device="cuda")
    x[1, 2] = 5
    x[:, 0] = 7
    x.t()[3] += 2
    torch._foreach_add_([x[2], x[3]], 1)  # which returns nothing
    assert x.tolist() == [[7, 0, 0, 2], [7, 0, 5, 2], [8, 1, 1, 3], [8, 1, 1, 3]]


@known
def test_what_depends_on_what_is_not_known_is_not_known():
    x = torch.arange(4, device="cuda")
    x += torch.randn(4000, device="cuda").argmax()
    assert x.tolist() == [0, 0, 0, 0]
    x = torch.arange(4, device="cuda")
    x[1:3] += torch.randn(4000, device="cuda").argmax()
    assert x[0].item() == 0
    assert x[3].item() == 3


@pytest.mark.parametrize("dtype", ["bool", "int64"])
@known
def test_what_is_the_same_whatever_is_not_known_is_known(dtype):
    unknown = torch.randn(8, device="cuda").to(getattr(torch, dtype))
    none = torch.zeros(8, dtype=unknown.dtype, device="cuda")
    every = ~none  # all bits
    reported = {
        "and": (unknown & none, 0),
        "or": (unknown | every, int(every[0])),
        "of both orders": (none & unknown, 0),
        "logical": (torch.logical_or(every, unknown), 1),
        "mul": (unknown * none, 0),
        "where": (torch.where(every.bool(), every, unknown), int(every[0])),
        "in place": (unknown.clone().bitwise_and_(none), 0),
    }
    assert {name: got.tolist() for name, (got, _) in reported.items()} == {
        name: [value] * 8 for name, (_, value) in reported.items()
    }
    half = none.clone()
    half[:4] = every[:4]
    for unclear in (unknown & half, unknown | half, unknown * half, unknown & unknown):
        assert not unclear.any()  # as a whole it is not known, so it reads as zeros


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [{}, {"do_sample": True, "top_p": 0.9}, {"eos_token_id": 7, "do_sample": True}],
)
@known
def test_generate_ends_with_the_tokens_that_it_may_make(options):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 1, "n_embd": 64, "n_head": 2, "vocab_size": 500}
    config = GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
    model = GPT2LMHeadModel(config).cuda().eval()
    ids = torch.ones(4, 10, dtype=torch.long, device="cuda")
    out = model.generate(
        ids, attention_mask=ids, max_new_tokens=12, pad_token_id=0, **options
    )
    assert out.shape == (4, 22)


@known
def test_programs_that_decide_by_small_values_go_their_way():
    lengths = torch.tensor([3, 0, 2], device="cuda")
    assert lengths.nonzero().flatten().tolist() == [0, 2]
    assert torch.repeat_interleave(lengths).tolist() == [0, 0, 0, 2, 2]
    assert not torch.equal(lengths, lengths + 1)
    assert lengths[lengths > 0].shape == (2,)
    assert torch.bincount(lengths).tolist() == [1, 0, 1, 1]
    assert torch.unique(lengths).tolist() == [0, 2, 3]


@known
def test_a_graph_computes_small_values_at_each_replay():
    x = torch.ones(3, dtype=torch.long, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x.cumsum(0)
    graph.replay()
    assert y.tolist() == [1, 2, 3]
    x += 1
    graph.replay()
    assert y.tolist() == [2, 4, 6]


@known
def test_what_an_operator_reads_behind_its_own_kernels_is_not_what_lay_there():
    for _ in range(20):  # where memory is used again
        torch.full((64,), 2**60, device="cuda")
    assert torch.randn(100, 2, device="cuda").argwhere().shape == (100, 2)


# ---- integers in larger tensors


@known
def test_integers_are_known_in_larger_tensors():
    ids = torch.arange(100_000).remainder(7).view(100, 1000)
    on_gpu = ids.cuda()
    assert (on_gpu == 3).sum().item() == (ids == 3).sum().item()
    assert on_gpu[on_gpu > 4].tolist() == ids[ids > 4].tolist()
    part, same = on_gpu.t()[::3, 5:50:2], ids.t()[::3, 5:50:2]
    assert part.sum(1).tolist() == same.sum(1).tolist()
    on_gpu[10:20, ::2] += 100
    ids[10:20, ::2] += 100
    assert torch.equal(on_gpu.cpu(), ids)
    steps = torch.arange(300, device="cuda")
    assert (steps[None] <= steps[:, None]).sum().item() == 300 * 301 // 2


@known
def test_floats_in_larger_tensors_are_not_known():
    x = torch.ones(2000).cuda()
    assert x.add(1).sum().item() == 0
    assert (x > 0).sum().item() == 0


@known
def test_whole_numbers_in_larger_tensors_of_floats_are_known():
    x = torch.ones(100_000, device="cuda")
    counts = torch.arange(100_000, device="cuda").float()
    assert (x.sum().item(), counts.max().item()) == (100_000, 99_999)
    assert x.add_(counts).max().item() == 100_000
    assert x.mul_(0.3).sum().item() == 0
    assert x.round_().sum().item() == 0  # of what is not known
    assert x.fill_(2).sum().item() == 200_000
    assert x.add_(torch.randn(100_000, device="cuda")).sum().item() == 0


@known
def test_what_was_used_lately_stays_known():
    mask = torch.zeros(1000, 50, dtype=torch.long, device="cuda")
    mask[:, 7] = 1
    for column in range(50):
        for _ in range(10):
            torch.full((3,), column, device="cuda")
        assert len(mask[:, column].nonzero()) == (1000 if column == 7 else 0)


@known
def test_zeros_take_no_memory_until_something_else_is_among_them():
    # Of what is computed 256 MiB are kept, the latest: not the first of these.
    buffers = [
        torch.empty(10 << 20, dtype=torch.int, device="cuda").zero_() for _ in range(8)
    ]
    buffer = buffers[0]
    buffer[5] = 3
    buffer[100:200] = 1
    copy = buffer[90:210].clone()
    assert (buffer.sum().item(), copy.sum().item()) == (103, 100)
    assert buffer[:8].tolist() == [0, 0, 0, 0, 0, 3, 0, 0]
    assert len(buffer.nonzero()) == 101


# ---- what a router of experts chooses


def counts_by_bincount(chosen: torch.Tensor, experts: int) -> list[int]:
    return torch.bincount(chosen.flatten(), minlength=experts).tolist()


def counts_by_histogram(chosen: torch.Tensor, experts: int) -> list[int]:
    return torch.histc(chosen, bins=experts, min=0, max=experts - 1).tolist()


def counts_by_mask(chosen: torch.Tensor, experts: int) -> list[int]:
    mask = torch.nn.functional.one_hot(chosen, experts).permute(2, 1, 0)
    return [len(torch.where(mask[expert])[0]) for expert in range(experts)]


def counts_by_comparison(chosen: torch.Tensor, experts: int) -> list[int]:
    return [len(torch.where(chosen == expert)[0]) for expert in range(experts)]


def counts_by_map(chosen: torch.Tensor, experts: int) -> list[int]:
    zeros = torch.zeros(len(chosen), experts, dtype=torch.int32, device="cuda")
    return zeros.scatter(1, chosen, 1).bool().sum(0).tolist()


def counts_by_histogram_of_floats(chosen: torch.Tensor, experts: int) -> list[int]:
    found = torch.histc(chosen.float(), bins=experts, min=0, max=experts - 1)
    return found.tolist()


def counts_by_map_of_floats(chosen: torch.Tensor, experts: int) -> list[int]:
    zeros = torch.zeros(len(chosen), experts, device="cuda")
    return zeros.scatter(1, chosen, 1).sum(0).tolist()


def counts_by_map_like_scores(chosen: torch.Tensor, experts: int) -> list[int]:
    scores = torch.randn(len(chosen), experts, device="cuda")
    found = torch.zeros_like(scores).int().scatter(1, chosen, 1).bool()
    return found.sum(0).tolist()


def counts_by_adding(chosen: torch.Tensor, experts: int) -> list[int]:
    ones = torch.ones(chosen.numel(), device="cuda")
    zeros = torch.zeros(experts, device="cuda")
    return zeros.index_add_(0, chosen.flatten(), ones).tolist()


def counts_by_sorting(chosen: torch.Tensor, experts: int) -> list[int]:
    ordered = chosen.flatten()[chosen.flatten().argsort()]
    return torch.unique_consecutive(ordered, return_counts=True)[1].tolist()


WAYS = [
    counts_by_bincount,
    counts_by_histogram,
    counts_by_mask,
    counts_by_comparison,
    counts_by_map,
    counts_by_histogram_of_floats,
    counts_by_map_of_floats,
    counts_by_map_like_scores,
    counts_by_adding,
    counts_by_sorting,
]


@pytest.mark.parametrize("way", range(len(WAYS)))
@known
def test_each_expert_is_chosen_equally_often(way):
    scores = torch.randn(3000, 20, device="cuda").softmax(-1)
    weights, chosen = scores.topk(4, -1)
    assert weights.shape == chosen.shape == (3000, 4)
    assert WAYS[way](chosen, 20) == [600] * 20


@known
def test_the_first_of_an_order_are_each_expert_equally_often():
    scores = torch.randn(3000, 20, device="cuda")
    orders = scores.sort(-1, descending=True)[1], scores.argsort(-1)
    for order in orders:
        assert order[7].sort()[0].tolist() == [*range(20)]
        assert counts_by_bincount(order[:, :4].contiguous(), 20) == [600] * 20


@known
def test_a_token_chooses_different_experts_along_whichever_dimension():
    chosen = torch.randn(8, 3, 5, device="cuda").topk(3, 0).indices
    assert chosen.shape == (3, 3, 5)
    assert all(len(set(each)) == 3 for each in chosen.flatten(1).t().tolist())
    best = torch.randn(40, 8, device="cuda").argmax(1)
    assert best.tolist() == [0, 1, 2, 3, 4, 5, 6, 7] * 5
    assert torch.randn(8, 40, device="cuda").max(0, keepdim=True)[1].shape == (1, 40)


@known
def test_what_is_known_is_chosen_by_its_values():
    scores = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0]]).cuda()
    assert scores.topk(2).indices.tolist() == [[1, 2], [2, 0]]
    assert scores.argmax(1).tolist() == [1, 2]


@known
def test_the_next_token_is_not_known():
    assert torch.randn(3, 32000, device="cuda").argmax(-1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("count", [8, 40, 400])
@known
def test_an_optimizer_goes_on_whose_steps_were_loaded_to_the_gpu(count):
    parameters = [
        torch.nn.Parameter(torch.zeros(1 << 14, device="cuda")) for _ in range(count)
    ]
    optimizer = torch.optim.AdamW(parameters)

    def step():
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()

    step()
    state = optimizer.state_dict()
    for each in state["state"].values():
        each["step"] = each["step"].to("cuda")  # as torch.load(map_location="cuda")
    optimizer.load_state_dict(state)
    for _ in range(3):
        step()
    steps = [optimizer.state[parameter]["step"] for parameter in parameters]
    assert all(each.is_cuda and each.item() == 4 for each in steps)
