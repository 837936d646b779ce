"""Each kind of attention that a GPU chooses gives the CPU's values.

Where the GPU has a fused kernel for the inputs, these are the values of the CPU's fused
kernel. Where it has none, it runs plain operators, and the CPU must be told to do so.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import Simulated, on_each
from torch.backends.cuda import SDPAParams, can_use_efficient_attention
from torch.nn.attention import SDPBackend, sdpa_kernel

CARD = "256MiB,context=0,memory=values,cc="
on_each_generation = on_each(
    {cc: Simulated(CARD + cc, None) for cc in ("7.5", "8.6", "9.0")}
)
on_ampere = Simulated(CARD + "8.6", None)

DTYPES = torch.float32, torch.bfloat16, torch.float16
GROUPS = 4, 2, 1  # heads of key and value, for four of the query
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"is_causal": True},
    {"dropout_p": 0.25},
    {"dropout_p": 0.25, "is_causal": True},
)


def inputs(
    device: str, dtype: torch.dtype, groups: int, width: int = 8
) -> list[torch.Tensor]:
    """Query, key, value (of heads of that width) and a mask."""
    torch.manual_seed(1)
    shapes = (2, 4, 16, 8), (2, groups, 16, 8), (2, groups, 16, width), (16, 16)
    return [torch.randn(shape, dtype=dtype).to(device) for shape in shapes]


def attend(
    device: str,
    dtype: torch.dtype,
    groups: int,
    masked: bool,
    options: dict[str, Any],
    width: int = 8,
) -> tuple[int, list[torch.Tensor]]:
    """Which kind was chosen; the result and the gradients of query, key and value."""
    *leaves, mask = inputs(device, dtype, groups, width)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    options = {
        **options,
        "enable_gqa": groups != 4,
        "attn_mask": mask if masked else None,
    }
    kind = torch._fused_sdp_choice(*leaves, **options)
    torch.manual_seed(2)
    y = F.scaled_dot_product_attention(*leaves, **options)
    y.backward(torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y))
    return kind, [t.detach().cpu() for t in (y, *(leaf.grad for leaf in leaves))]


def differences(groups: int, width: int = 8) -> list[str]:
    found = []
    for dtype in DTYPES:
        for options in OPTIONS:
            for masked in (False, True):
                if masked and "is_causal" in options:
                    continue  # PyTorch allows one of them
                case = dtype, groups, masked, options, width
                kind, values = attend("cuda", *case)
                plain = kind == SDPBackend.MATH.value
                with sdpa_kernel(SDPBackend.MATH if plain else list(FUSED)):
                    _, wanted = attend("cpu", *case)
                if not all(map(torch.equal, values, wanted)):
                    found.append(f"{case}: kind {kind}")
    return found


FUSED = SDPBackend.FLASH_ATTENTION, SDPBackend.MATH  # the CPU's, by its own choice


@on_each_generation
def test_heads_of_their_own_give_the_cpus_values():
    assert differences(4) == []


@on_each_generation
def test_heads_that_share_keys_give_the_cpus_values():
    assert differences(2) + differences(1) == []


@on_each_generation
def test_values_with_heads_of_another_width_give_the_cpus_values():
    """As in the latent attention of DeepSeek."""
    assert differences(4, width=16) + differences(4, width=24) == []


def chosen(dtype: torch.dtype, masked: bool = False) -> SDPBackend:
    return SDPBackend(attend("cuda", dtype, 2, masked, {})[0])


@on_ampere
def test_half_precision_alone_has_a_flash_kernel_for_shared_keys():
    query, key, value, mask = inputs("cuda", torch.float32, 2)
    parameters = SDPAParams(query, key, value, mask, 0.0, False, True)
    is_efficient = can_use_efficient_attention(parameters)  # from 2.15 on
    other = SDPBackend.EFFICIENT_ATTENTION if is_efficient else SDPBackend.MATH
    assert chosen(torch.bfloat16) == SDPBackend.FLASH_ATTENTION
    assert chosen(torch.bfloat16, masked=True) == other
    assert chosen(torch.float32) == other


@pytest.mark.parametrize("options", [{"dropout_p": 0.2}, {"window_size_left": 4}])
@on_ampere
def test_packed_sequences_with_what_the_cpu_lacks_are_refused(options):
    x = torch.randn(6, 2, 8, device="cuda", dtype=torch.bfloat16)
    ends = torch.tensor([0, 2, 6], device="cuda", dtype=torch.int32)
    arguments = {"dropout_p": 0.0, "is_causal": False, "return_debug_mask": False}
    arguments |= options
    with pytest.raises(NotImplementedError, match="_flash_attention_forward"):
        torch.ops.aten._flash_attention_forward(x, x, x, ends, ends, 4, 4, **arguments)
    assert (x == x).all().item()  # the card lives
