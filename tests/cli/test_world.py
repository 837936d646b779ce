"""One rank of a world whose other ranks do not exist."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ranks import run_ranks
from support import oomph

SHARDED = """
import os, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
if not dist.is_initialized():
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
size = dist.get_world_size()
mesh = dist.init_device_mesh("cuda", (size,))
with torch.device("meta"):
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)]
    network = nn.Sequential(*layers)
for layer in network:
    fully_shard(layer, mesh=mesh)
fully_shard(network, mesh=mesh)
network.to_empty(device=device)
optimizer = torch.optim.AdamW(network.parameters())
for step in range(2):
    loss = network(torch.randn(64, WIDTH, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss)
print("peak", torch.cuda.max_memory_allocated() >> 10, "KiB")
"""


def script(folder: Path, code: str) -> Path:
    place = folder / "script.py"
    place.write_text(textwrap.dedent(code))
    return place


def run_alone(place: Path, *options: str, card: str = "h100,context=0", **more):
    words = ("--simulate", card, "--allocator", "native", *options, place)
    return oomph("run", *words, **more)


def test_a_rank_that_is_alone_holds_what_it_holds_among_others(tmp_path):
    program = SHARDED.replace("WIDTH", "1024")
    among = run_ranks(4, program, "h100,context=0")
    options = ("--rank", "2", "--world", "4", "--local-world", "4")
    alone = run_alone(script(tmp_path, program), *options)
    assert alone.code == 0, alone.said
    assert alone.out == among[2].out
    assert int(alone.out.split()[1]) > 20_000


def test_one_of_a_thousand_ranks_is_told_what_its_launcher_would_tell(tmp_path):
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE"
    program = SHARDED.replace("WIDTH", "4096") + textwrap.dedent(f"""
        print(*(os.environ[name] for name in "{names}".split()))
        print(dist.get_rank(), size, torch.cuda.device_count())
        objects = [None] * 8
        dist.all_gather_object(objects, "ours", group=dist.new_group(range(8)))
        print(objects == ["ours"] * 8)
        print(sum(p.to_local().numel() for p in network.parameters()))
        dist.barrier()
        dist.destroy_process_group()
        """)
    options = ("--rank", "5", "--world", "1020", "--local-world", "8")
    found = run_alone(script(tmp_path, program), *options)
    assert found.code == 0, found.said
    reported = found.out.splitlines()[1:]
    assert reported[:3] == ["5 1020 5 8 0 128", "5 1020 8", "True"]
    # The 4096 rows of each weight go to 1020 ranks, five to each as far as they go.
    assert reported[3] == str(4 * (5 * 4096 + 5))


def test_its_own_numbers_stand_for_those_of_others(tmp_path):
    program = """
        import os, torch
        import torch.distributed as dist
        dist.init_process_group("cpu:gloo,cuda:nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        held = torch.arange(3.0, device="cuda")
        dist.all_reduce(held)
        many = [torch.empty(3, device="cuda") for _ in range(6)]
        dist.all_gather(many, held)
        part = torch.empty(1, device="cuda")
        dist.reduce_scatter_tensor(part, torch.arange(6.0, device="cuda"))
        print(held.tolist(), many[5].tolist(), part.tolist())
        many = [torch.empty(3) for _ in range(6)]
        dist.all_gather(many, torch.arange(3.0))
        print(many[5].tolist())
        """
    options = ("--values", "--rank", "1", "--world", "6")
    found = run_alone(script(tmp_path, program), *options, card="1GiB,context=0")
    assert found.code == 0, found.said
    on_gpu, on_cpu = found.out.splitlines()
    assert on_gpu == "[0.0, 6.0, 12.0] [0.0, 6.0, 12.0] [6.0]"
    assert on_cpu == "[0.0, 1.0, 2.0]"


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (("--rank", "8", "--world", "8"), "ranks are from 0 to 7"),
        (("--world", "0"), "rank 0 of a world of 0"),
        (("--rank", "1"), "add --world COUNT"),
        (("--world", "4", "--local-world", "99"), "has 1 to 16 devices"),
    ],
)
def test_a_rank_that_cannot_be_is_an_error(tmp_path, options, reported):
    found = run_alone(script(tmp_path, "print('ran')"), *options)
    assert found.code == 2
    assert reported in found.err
    assert "ran" not in found.out


def test_a_world_needs_a_simulated_gpu(tmp_path):
    found = oomph("run", "--world", "8", script(tmp_path, "print('ran')"))
    assert found.code == 2
    assert "--world needs a simulated GPU" in found.err


@pytest.mark.long
def test_objects_of_others_are_its_own_or_an_error(tmp_path):
    program = """
        import torch
        import torch.distributed as dist
        dist.init_process_group("nccl")
        many, own = [None] * 6, {"rank": dist.get_rank()}
        dist.all_gather_object(many, own)
        given = [own, "longer than that of others"]
        dist.broadcast_object_list(given, 0)
        print(many == [own] * 6 and many[0] is not own, given[1])
        try:
            dist.recv_object_list([None], src=0)
        except RuntimeError as error:
            print(error)
        """
    options = ("--rank", "1", "--world", "6")
    found = run_alone(script(tmp_path, program), *options, anew=True)
    assert found.code == 0, found.said
    first, second, *_ = found.out.splitlines()
    assert first == "True longer than that of others"
    assert "rank 1 waits for objects of rank 0: run as that rank, the pro" in second


# A pipeline whose stages are not alike: each learns its shapes from the one before.
STAGES = """
import os, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
if not dist.is_initialized():
    dist.init_process_group("nccl")
before, width = 512 * rank or 256, 512 * (rank + 1)
part = nn.Sequential(nn.Linear(before, width), nn.GELU(), nn.Linear(width, width))
stage = PipelineStage(part.to(device), rank, size, device)
loss = lambda x, y: (x - y).square().mean()
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss)
optimizer = torch.optim.AdamW(part.parameters())
inputs = [torch.randn(64, 256, device=device)] if rank == 0 else []
target = torch.randn(64, 512 * size, device=device) if rank == size - 1 else None
for step in range(2):
    schedule.step(*inputs, target=target)
    optimizer.step()
    optimizer.zero_grad()
print("peak", torch.cuda.max_memory_allocated() >> 10, "KiB")
"""


@pytest.mark.long
def test_a_later_stage_of_a_pipeline_holds_what_it_holds_among_others(tmp_path):
    among = run_ranks(3, STAGES, "h100,context=0")
    for rank in (1, 2):
        options = ("--rank", str(rank), "--world", "3", "--local-world", "3")
        alone = run_alone(script(tmp_path, STAGES), *options, anew=True)
        assert alone.code == 0, alone.said
        assert alone.out == among[rank].out
    assert len({each.out for each in among}) == 3


@pytest.mark.long
def test_fit_finds_the_stage_that_needs_most(tmp_path):
    words = ("--brief", "--gpu", "h100", "--world", "3", script(tmp_path, STAGES))
    found = oomph("fit", *words, anew=True)
    assert found.code == 0, found.said
    assert "of which 3 ranks ran" in found.out
    assert "The table is for rank 2; rank 1 takes " in found.out


SENDING = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
got = [None]
"""


@pytest.mark.long
def test_each_message_of_another_rank_comes_in_its_turn(tmp_path):
    program = """
        if rank == 0:
            dist.send_object_list(["not for two"], dst=1)
            dist.send_object_list([{"first": 1}], dst=2)
            dist.send_object_list(["second"], group_dst=2)
        else:
            dist.recv_object_list(got, src=0)
            print(got)
            print(dist.recv_object_list(got, group_src=0), got)
        """
    program = SENDING + textwrap.dedent(program)
    options = ("--rank", "2", "--world", "3")
    found = run_alone(script(tmp_path, program), *options, anew=True)
    assert found.code == 0, found.said
    assert found.out == "[{'first': 1}]\n0 ['second']\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sys.exit('no data')", "waits for objects of rank 0: run as that rank"),
        ("dist.recv_object_list(got, src=1)", "waits for those of others in turn"),
    ],
)
def test_a_rank_that_would_not_send_is_reported(body, why, tmp_path):
    program = f"""
if rank == 1:
    dist.recv_object_list(got, src=0)
{body}
"""
    options = ("--rank", "1", "--world", "2")
    found = run_alone(script(tmp_path, SENDING + program), *options, anew=True)
    assert found.code == 1
    assert why in found.err


def test_objects_of_any_rank_are_an_error(tmp_path):
    program = SENDING + "dist.recv_object_list(got)"
    found = run_alone(script(tmp_path, program), "--rank", "1", "--world", "2")
    assert "rank 1 waits for objects of any rank, and none of the others" in found.err


EXPERTS = """
import os, torch
import torch.distributed as dist

if not dist.is_initialized():
    dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
size = dist.get_world_size()
EXPERTS, TOP, TOKENS, WIDTH = 16, 2, 4096, 256
own = EXPERTS // size
experts = [torch.nn.Linear(WIDTH, WIDTH, device=device) for _ in range(own)]
x = torch.randn(TOKENS, WIDTH, device=device)
chosen = torch.nn.Linear(WIDTH, EXPERTS, device=device)(x).topk(TOP).indices.flatten()
order = chosen.argsort(stable=True)
sent = torch.bincount(chosen, minlength=EXPERTS)
received = torch.empty_like(sent)
dist.all_to_all_single(received, sent)
here = received.view(size, -1)
to, of = sent.view(size, -1).sum(1).tolist(), here.sum(1).tolist()
got = x.new_empty(sum(of), WIDTH)
dist.all_to_all_single(got, x[order // TOP], of, to)
which = torch.arange(own, device=device).repeat(size).repeat_interleave(received)
counts = here.sum(0).tolist()
parts = got[which.argsort(stable=True)].split(counts)
result = torch.cat([expert(part) for expert, part in zip(experts, parts)])
print(to, of, counts, list(result.shape))
"""


# The same by functional collectives, as torchtitan has it: counts are floats.
FUNCTIONAL = (
    EXPERTS[: EXPERTS.index("sent =")]
    + """
from torch.distributed._functional_collectives import (
    all_to_all_single,
    all_to_all_single_autograd,
    wait_tensor,
)
sent = torch.histc(chosen.float(), bins=EXPERTS, min=0, max=EXPERTS)
received = wait_tensor(all_to_all_single(sent, None, None, dist.group.WORLD))
to = sent.view(size, -1).sum(1).int().tolist()
of = received.view(size, -1).sum(1).int().tolist()
tokens = x[order // TOP]
got = all_to_all_single_autograd(tokens, of, to, dist.group.WORLD)
back = all_to_all_single_autograd(got, to, of, dist.group.WORLD)
print(to, of, received.view(size, -1).sum(0).tolist(), list(got.shape), len(back))
"""
)


def test_functional_collectives_give_experts_their_share_too(tmp_path):
    options = ("--world", "8", "--rank", "3")
    alone = run_alone(script(tmp_path, FUNCTIONAL), *options)
    assert alone.code == 0, alone.said
    shares = f"{[1024] * 8} {[1024] * 8} {[4096.0] * 2}"
    assert alone.out == f"{shares} [8192, 256] 8192\n"


def test_experts_of_a_rank_get_their_share_of_all_tokens(tmp_path):
    options = ("--world", "8", "--rank", "3")
    alone = run_alone(script(tmp_path, EXPERTS), *options)
    assert alone.code == 0, alone.said
    assert alone.out == f"{[1024] * 8} {[1024] * 8} [4096, 4096] [8192, 256]\n"
    among = run_ranks(2, EXPERTS, "h100,context=0")
    assert among[1].out == f"{[4096] * 2} {[4096] * 2} {[1024] * 8} [8192, 256]\n"


# Memory that ranks map of each other, and a product that gathers its rows on the way.
SYMMETRIC = """
import os, torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
if not dist.is_initialized():
    dist.init_process_group("nccl")
group = dist.group.WORLD
free_bytes = torch.cuda.mem_get_info()[0]
shared = symmetric.empty(8 << 20, device=device)
handle = symmetric.rendezvous(shared, group)
taken = free_bytes - torch.cuda.mem_get_info()[0]
rows = torch.randn(64, 32, device=device, dtype=torch.bfloat16)
weight = torch.randn(32, 16, device=device, dtype=torch.bfloat16)
gather = torch.ops.symm_mem.fused_all_gather_matmul
gathered, products = gather(rows, [weight], 0, group.group_name)
scatter = torch.ops.symm_mem.fused_matmul_reduce_scatter
part = scatter(gathered, weight, "sum", 0, group.group_name)
print(handle.world_size, taken >> 20, gathered.shape, products[0].shape, part.shape)
"""


def test_a_rank_that_is_alone_shares_memory_as_among_others(tmp_path):
    among = run_ranks(2, SYMMETRIC, "h100,context=0")
    options = ("--rank", "1", "--world", "2", "--local-world", "2")
    alone = run_alone(script(tmp_path, SYMMETRIC), *options)
    assert alone.code == 0, alone.said
    assert alone.out == among[1].out
    assert 32 <= int(alone.out.split()[1]) < 48, alone.out
