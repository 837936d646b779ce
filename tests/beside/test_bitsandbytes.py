"""bitsandbytes on a simulated card: what it holds, in tensors and in managed memory."""

from __future__ import annotations

import pytest
from support import APART, run

CARD = "1GiB,context=0"
BYTES_A_NS, LAUNCH_NS = 1000, 1000
RATES = (
    "gpu=a100-40gb,bandwidth=1000GB/s,bandwidth-share=1,launch=1us,tick=0,dispatch=0"
)


def told(code: str, conf: str | None, card: str = CARD) -> list[float]:
    """What the code prints, as numbers."""
    done = run(code, card=card, conf=conf, PYTHONPATH=str(APART))
    assert done.code == 0, done.said
    return [float(word) for word in done.out.split()]


@pytest.mark.long
@pytest.mark.parametrize("conf", [None, "offload:auto"])
def test_a_layer_of_4_bits_holds_half_a_byte_and_a_scale_for_64_weights(conf):
    held, peak = told(
        """
        import bitsandbytes, torch
        layer = bitsandbytes.nn.Linear4bit(
            4096, 4096, bias=False, compute_dtype=torch.bfloat16,
            compress_statistics=False,
        )
        layer.cuda()
        held = torch.cuda.memory_allocated()
        x = torch.ones(8, 4096, device="cuda", requires_grad=True)
        layer(x).sum().backward()
        print(held, torch.cuda.max_memory_allocated())
        """,
        conf,
    )
    code = 512  # the 16 values, in a block of the least size
    assert held == 4096 * 4096 * (1 / 2 + 4 / 64) + code
    assert peak > 4096 * 4096 * 2  # in bfloat16, for its product


@pytest.mark.parametrize("conf", [None, "offload:auto,reserve:0"])
def test_pages_of_an_optimizer_give_way_to_tensors(conf):
    before, after, full, again = told(
        """
        import bitsandbytes, torch
        layer = torch.nn.Linear(4096, 4096, bias=False, device="cuda")
        optimizer = bitsandbytes.optim.PagedAdamW8bit(layer.parameters())

        def free():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return torch.cuda.mem_get_info()[0]

        def step():
            layer(torch.ones(8, 4096, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        before = free()
        step()
        after = free()
        rest = torch.empty(after + 16 * 2**20, dtype=torch.uint8, device="cuda")
        full = free()
        del rest
        free()
        step()
        print(before, after, full, free())
        """,
        conf,
    )
    states = 2 * 4096 * 4096  # bytes; the scales are ordinary tensors
    assert before - after >= states
    assert full < 16 * 2**20
    assert again == after


def test_its_operators_take_the_time_to_move_what_they_are_given():
    bytes_moved, took_ns = told(
        """
        import bitsandbytes, torch
        from bitsandbytes import functional
        from oomph.simulate import usage

        packed, state = functional.quantize_4bit(
            torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16), blocksize=64
        )
        torch.cuda.synchronize()
        before = usage()
        whole = functional.dequantize_4bit(packed, state)
        torch.cuda.synchronize()
        after = usage()
        print(after.device_bytes - before.device_bytes, after.now_ns - before.now_ns)
        """,
        None,
        card=f"{CARD},{RATES}",
    )
    weights = 4096 * 4096
    assert bytes_moved == weights * (1 / 2 + 4 / 64 + 2)
    assert took_ns == pytest.approx(bytes_moved / BYTES_A_NS, abs=LAUNCH_NS)
