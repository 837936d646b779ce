"""What programs see of PyTorch's allocator is the same under oomph, to the word."""

import pytest
import torch
from support import Simulated, on_each

CARD = "1GiB,context=0"
in_each_mode = on_each(
    {
        "native": Simulated(CARD, None),
        "oomph": Simulated(CARD, "reserve:0,offload:off"),
    }
)


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


@in_each_mode
def test_what_no_card_can_have_is_refused_in_pytorchs_words():
    for size in (1 << 60, 1 << 62, (1 << 63) - 1):
        with pytest.raises(torch.OutOfMemoryError) as error:
            take(size)
        assert str(error.value) == (
            "CUDA out of memory. Tried to allocate more than 1EB memory."
        )
    assert torch.cuda.memory_stats()["num_ooms"] == 0


@in_each_mode
def test_waits_for_all_streams_are_counted():
    def waits() -> int:
        return torch.cuda.memory_stats()["num_sync_all_streams"]

    before = waits()
    take(30 << 20)
    torch.cuda.empty_cache()
    torch.cuda.empty_cache()
    assert waits() == before + 2
    side = torch.cuda.Stream()
    block = take(30 << 20)
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
    block.record_stream(side)
    del block
    torch.cuda.empty_cache()
    assert waits() == before + 3
    with pytest.raises(torch.OutOfMemoryError):
        take(2 << 30)
    assert waits() == before + 4
