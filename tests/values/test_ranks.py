"""What torchrun trains on several simulated cards is what it trains on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from ranks import run_ranks
from support import TESTS, execute, lines

WAYS = ["ddp", "fsdp", "by-hand"]
RANK_COUNT = 2
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]
SIZES = ["--layers", "4", "--width", "128", "--batch", "4096", "--steps", "2"]
CARD = f"devices={RANK_COUNT},context=0,memory=values,cc=8.6,host=4GiB"

Values = dict[str, list[torch.Tensor]]  # by the way of training


def train(
    folder: Path,
    device: str,
    card: str | None = None,
    conf: str | None = None,
    ways: list[str] = WAYS,
    count: int = RANK_COUNT,
    more: tuple[str, ...] = (),
) -> tuple[list[Values], str]:
    """What each rank has, and what all said."""
    done = execute(
        *(sys.executable, *TORCHRUN, "--nproc-per-node", str(count)),
        *(TESTS / "scripts" / "train_ranks.py", *ways, *SIZES, *more),
        *("--device", device, "--save", folder / "values"),
        card=card,
        conf=conf,
    )
    assert done.code == 0, done.err
    return [torch.load(folder / f"values.{i}") for i in range(count)], done.err


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> list[Values]:
    found, _ = train(tmp_path_factory.mktemp("cpu"), "cpu")
    for way in WAYS:  # each rank has data of its own, and all have one network
        assert found[0][way][0] != found[1][way][0]
    for way in ("ddp", "by-hand"):
        assert torch.equal(found[0][way][-1], found[1][way][-1])
    return found


def check(found: list[Values], wanted: list[Values]) -> None:
    for rank in range(RANK_COUNT):
        for way in WAYS:
            pairs = zip(found[rank][way], wanted[rank][way], strict=True)
            equal = [torch.equal(a, b) for a, b in pairs]
            assert all(equal), f"{way}, rank {rank}: {equal}"


@pytest.mark.long
def test_ranks_give_the_cpus_values_with_pytorchs_allocator(wanted, tmp_path):
    found, _ = train(tmp_path, "cuda", f"1GiB,{CARD}")
    check(found, wanted)


def test_ranks_give_the_cpus_values_with_oomph(wanted, tmp_path):
    found, said = train(tmp_path, "cuda", f"1GiB,{CARD}", "reserve:0,offload:off")
    check(found, wanted)
    assert "fell back to host memory" not in said


@pytest.mark.long
def test_ranks_on_cards_that_are_too_small_give_the_cpus_values(wanted, tmp_path):
    conf = "reserve:12MiB,host_limit:1GiB"  # NCCL takes some of it with 2.10
    found, said = train(tmp_path, "cuda", f"30MiB,{CARD}", conf)
    check(found, wanted)
    for rank in range(RANK_COUNT):
        assert len(lines(said, f"GPU {rank} was out of memory:")) == 1, said


# ---- over NCCL

NCCL = ("--backend", "nccl")


def test_ranks_over_nccl_give_gloos_values(wanted, tmp_path):
    found, _ = train(tmp_path, "cuda", f"1GiB,{CARD}", more=NCCL)
    check(found, wanted)


@pytest.mark.long
@pytest.mark.parametrize("hold", ["", "1:20"], ids=["all", "one"])
def test_ranks_over_nccl_that_are_short_give_gloos_values(wanted, tmp_path, hold):
    """All of them are, or one that holds memory which the others have free."""
    size = "54MiB" if hold else "34MiB"
    more = (*NCCL, "--hold", hold) if hold else NCCL
    conf = "reserve:0,host_limit:1GiB"
    found, said = train(tmp_path, "cuda", f"{size},{CARD}", conf, more=more)
    check(found, wanted)
    short = [r for r in range(RANK_COUNT) if f"GPU {r} was out of memory:" in said]
    assert short == ([1] if hold else [0, 1]), said


@pytest.mark.long
def test_the_offload_of_fsdp2_beside_ours_gives_gloos_values(wanted, tmp_path):
    """Parameters, gradients and the optimizer are on the CPU; the rest is too much."""
    card, conf = f"20MiB,{CARD}", "reserve:0,host_limit:1GiB"
    found, said = train(tmp_path, "cuda", card, conf, ways=["cpu-offload"], more=NCCL)
    for rank in range(RANK_COUNT):
        ours, theirs = found[rank]["cpu-offload"], wanted[rank]["fsdp"]
        assert all(map(torch.equal, ours, theirs)), f"rank {rank}"
        assert len(lines(said, f"GPU {rank} was out of memory:")) == 1, said


# Blocks whose MLP is divided among ranks, by hand as in Megatron.
DIVIDED = """
from torch import nn

class Into(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient

class OutOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.up, self.down = nn.Linear(128, 256), nn.Linear(256, 128, bias=False)

    def forward(self, x):
        y = nn.functional.gelu(self.up(Into.apply(self.norm(x))))
        return x + OutOf.apply(self.down(y))

torch.manual_seed(rank)
model = nn.Sequential(*(Block() for _ in range(4))).to(device)
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(7)
is_short = rank == 0 and torch.cuda.get_allocator_backend() == "oomph"
held = torch.empty(is_short * 110 << 20, dtype=torch.uint8, device=device)
for _ in range(5):
    x = torch.randn(4096, 128).to(device)
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
if is_short:
    import oomph
    print(oomph.planner.explain()[0]["text"])
"""


@pytest.mark.long
def test_what_talks_to_other_ranks_is_sent_as_they_may_not_be_short():
    card = "context=0,memory=values,host=4GiB"
    wanted = run_ranks(2, DIVIDED, f"1GiB,{card}")
    found = run_ranks(2, DIVIDED, f"160MiB,{card}", "reserve:8MiB")
    for ours, theirs in zip(found, wanted, strict=True):
        assert lines(ours.out, "loss") == lines(theirs.out, "loss")
    assert "Block: it talks to other ranks" in found[0].out
    assert "GPU 1" not in found[1].err


def test_attention_of_which_each_rank_has_a_part_is_that_of_the_whole():
    run_ranks(
        2,
        """
        from torch.distributed.tensor.experimental import context_parallel
        from torch.nn.attention import SDPBackend, sdpa_kernel
        import torch.nn.functional as F
        made = torch.Generator().manual_seed(0)
        given = [torch.randn(2, 4, 128, 32, generator=made) for _ in range(3)]
        given = [each.to(device) for each in given]
        whole = [each.clone().requires_grad_() for each in given]
        result = F.scaled_dot_product_attention(*whole, is_causal=True)
        result.square().sum().backward()
        mesh = dist.init_device_mesh("cuda", (size,))
        buffers = [*given, torch.arange(128, device=device)]
        with (
            context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2, 0]),
            sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]),
        ):
            parts = [each.detach().clone().requires_grad_() for each in given]
            part = F.scaled_dot_product_attention(*parts, is_causal=True)
            part.square().sum().backward()
            own = buffers[3].tolist()
        assert len(own) == 64
        torch.testing.assert_close(part, result[:, :, own])
        for ours, theirs in zip(parts, whole):
            torch.testing.assert_close(ours.grad, theirs.grad[:, :, own])
        """,
        "4GiB,gpu=h100,context=0,memory=values",
    )


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> list[Values]:
    ways = ["ddp", "fsdp", "hsdp", "tp", "2d", "zero1"]
    return train(tmp_path_factory.mktemp("gloo"), "cpu", ways=ways, count=4)[0]


@pytest.mark.long
def test_each_way_of_training_on_four_ranks_gives_gloos_values(four, tmp_path):
    """To the last bits, as a ring adds in another order than gloo does."""
    ways = [*four[0], "fsdp1", "pp"]
    card = f"1GiB,{CARD}".replace("devices=2", "devices=4")
    found, _ = train(tmp_path, "cuda", card, ways=ways, count=4, more=NCCL)
    for way in four[0]:
        for rank in range(4):
            for ours, theirs in zip(found[rank][way], four[rank][way], strict=True):
                torch.testing.assert_close(ours, theirs, msg=f"{way}, rank {rank}")
    for rank in range(4):  # gloo has no such way on the CPU
        losses = [found[rank][way][:2] for way in ("fsdp1", "fsdp")]
        torch.testing.assert_close(*losses)
    assert [len(found[rank]["pp"]) for rank in range(4)] == [0, 0, 0, 2]
    # Its first loss is that of the whole batch, before anything is learned.
    torch.testing.assert_close(found[3]["pp"][0], four[0]["ddp"][0])
