"""Operators on the simulated GPU: what runs, what is named, what is invented."""

import pytest
import torch
import torch.nn.functional as F
from oomph.simulate import operators
from support import Simulated, run
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

simulated = Simulated("4GiB,devices=2", None)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)


def train(module: nn.Module, *shape: int) -> torch.Size:
    """The shape of what a module makes of an input, after its gradients were made."""
    output = module.cuda()(random(*shape))
    output = output[0] if isinstance(output, tuple) else output
    output.sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    return output.shape


# ---- libraries with a stand-in


@simulated
def test_matrices_are_multiplied():
    a, b = random(4, 8, 16), random(4, 16, 2)
    (a @ b).sum().backward()
    assert b.grad.shape == b.shape
    half = torch.float16
    assert (random(8, 16, dtype=half) @ random(16, 2, dtype=half)).shape == (8, 2)


@simulated
def test_matrices_of_eight_bits_are_multiplied():
    a = random(32, 64).to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    c = torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.bfloat16)
    assert c.shape == (32, 32)


@simulated
def test_convolutions_run():
    assert train(nn.Conv2d(3, 8, 3), 2, 3, 16, 16) == (2, 8, 14, 14)
    assert train(nn.ConvTranspose3d(3, 8, 3), 2, 3, 4, 4, 4) == (2, 8, 6, 6, 6)
    depthwise = nn.Conv2d(4, 8, 3, groups=4).to(memory_format=torch.channels_last)
    assert train(depthwise, 2, 4, 16, 16) == (2, 8, 14, 14)


@simulated
def test_convolutions_run_when_cudnn_tries_algorithms():
    with torch.backends.cudnn.flags(benchmark=True):
        assert train(nn.Conv2d(3, 8, 3), 2, 3, 16, 16) == (2, 8, 14, 14)


@simulated
def test_normalisations_run():
    assert train(nn.BatchNorm2d(4), 2, 4, 8, 8) == (2, 4, 8, 8)
    assert train(nn.LayerNorm(8), 2, 8) == (2, 8)


@simulated
def test_recurrent_networks_run():
    assert train(nn.LSTM(8, 16, 2, bidirectional=True), 5, 3, 8) == (5, 3, 32)
    assert train(nn.LSTM(8, 16, proj_size=4), 5, 3, 8) == (5, 3, 4)
    assert train(nn.GRU(8, 16), 5, 3, 8) == (5, 3, 16)


@simulated
@pytest.mark.parametrize(
    "backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"]
)
def test_attention_runs(backend):
    q = random(2, 4, 128, 64, dtype=torch.bfloat16)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    assert q.grad.shape == q.shape


# ---- errors


@simulated
def test_a_wrong_argument_is_still_pytorchs_own_error():
    with pytest.raises(RuntimeError, match="must be batches of square matrices"):
        torch.linalg.inv(torch.empty(2, 3, device="cuda"))


@simulated
def test_memory_that_ends_in_a_wrapped_operator_is_still_that_error():
    with pytest.raises(torch.OutOfMemoryError):
        torch.nonzero(torch.empty(1 << 30, dtype=torch.bool, device="cuda"))
    with pytest.raises(torch.OutOfMemoryError):
        torch.linalg.cholesky(torch.empty(25_000, 25_000, device="cuda"))


@simulated
def test_lengths_that_are_not_known_are_named():
    probabilities = random(50, 4, 20).log_softmax(2)
    targets = torch.zeros(40, dtype=torch.long, device="cuda")
    lengths = torch.full((4,), 50), torch.full((4,), 10)
    with pytest.raises(NotImplementedError, match="aten::_ctc_loss cannot run"):
        zero = probabilities.argmax()
        F.ctc_loss(probabilities, targets, *(n.cuda() + zero for n in lengths))
    F.ctc_loss(probabilities, targets, *(n.cuda() for n in lengths))
    F.ctc_loss(probabilities, targets, *lengths).backward()


# ---- sizes that values decide


@simulated
def test_nonzero_finds_one_half_rounded_up():
    assert torch.empty(5, 3, device="cuda").nonzero().shape == (8, 2)
    assert torch.empty(0, device="cuda").nonzero().shape == (0, 1)


@simulated
def test_a_mask_selects_one_half():
    x = random(10, 4)
    selected = x[x > 0]
    assert selected.shape == (20,)
    selected.sum().backward()
    assert x.grad.shape == x.shape
    assert x[torch.empty(10, dtype=torch.bool, device="cuda")].shape == (5, 4)
    assert torch.masked_select(x, x > 0).shape == (20,)


@simulated
def test_nonzero_allocates_what_it_does_on_a_gpu():
    mask = torch.empty(1 << 20, dtype=torch.bool, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = mask.nonzero()
    result = found.numel() * 8
    assert torch.cuda.memory_allocated() == before + result
    # The count and the scratch memory that finds the places, besides the result.
    assert torch.cuda.max_memory_allocated() > before + result
    del found


@simulated
def test_unique_finds_one_half():
    x = random(10, 4).detach()
    assert x.unique().shape == (20,)
    assert x.unique(dim=0).shape == (5, 4)
    assert x.unique_consecutive(dim=0).shape == (5, 4)
    assert [t.shape[0] for t in torch.unique(x, True, True, True)] == [20, 10, 20]


@Simulated("4GiB,matches=0.1", None)
def test_a_card_may_find_another_share():
    x = random(10, 4).detach()
    before = operators.guess_count()
    assert x.nonzero().shape == (4, 2)
    assert x[x > 0].shape == (4,)
    assert x.unique(dim=0).shape == (1, 4)
    assert operators.guess_count() == before + 3


@simulated
def test_what_is_known_is_not_guessed():
    before = operators.guess_count()
    assert torch.tensor([0, 3, 0, 5, 7], device="cuda").nonzero().shape == (3, 1)
    assert operators.guess_count() == before


@simulated
def test_elements_are_repeated_once_each():
    counts = torch.empty(256, dtype=torch.long, device="cuda")
    assert torch.repeat_interleave(counts).shape == (256,)


@simulated
def test_what_operators_check_holds():
    x = random(4).detach()
    assert torch.allclose(x, x + 1)
    assert torch.equal(x, x + 1)
    assert torch.normal(x, x).shape == (4,)
    assert torch.mode(torch.zeros(1000, device="cuda")).values.shape == ()
    torch.distributions.Normal(x, x).rsample()
    torch.distributions.Categorical(probs=x).sample()


@simulated
def test_an_answer_is_not_given_to_the_operators_that_follow():
    x = torch.empty(100, device="cuda")
    x.nonzero()
    assert x.sum().item() == 0


@simulated
def test_a_tensor_can_be_printed():
    assert "cuda:0" in repr(torch.ones(3, 3, device="cuda"))


# ---- the import


def test_preparing_pytorch_says_nothing():
    result = run("import torch; torch.empty(1, device='cuda')", card="1GiB")
    assert result.code == 0
    assert result.said == ""
