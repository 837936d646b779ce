"""Libraries that take memory of the card for themselves, beside oomph."""

from __future__ import annotations

import pytest
import torch
from neighbours import needs
from support import MIB, Simulated

CARD = "512MiB,context=0,memory=values"
simulated = Simulated(CARD, "reserve:0,host_limit:1GiB")


def free_mib() -> int:
    return torch.cuda.mem_get_info()[0] // MIB


@pytest.mark.long
@needs("numba-cuda", "numba", "llvmlite", "cuda-core")
@simulated
def test_what_numba_takes_is_missing_to_pytorch_and_rescued():
    import numpy
    import oomph
    from numba import cuda

    torch.zeros(1, device="cuda")
    before = free_mib()
    array = cuda.device_array(300 * MIB, dtype=numpy.uint8)
    assert free_mib() == before - 300
    tensor = torch.full((300 * MIB,), 7, dtype=torch.uint8, device="cuda")
    assert oomph.stats()["rescues"] == 1
    seen = cuda.as_cuda_array(tensor)  # of which a part is on the host, or all
    assert seen.device_ctypes_pointer.value == tensor.data_ptr()
    assert (seen.copy_to_host() == 7).all()
    shared = torch.as_tensor(array, device="cuda")
    assert shared.data_ptr() == array.device_ctypes_pointer.value
    del array, shared, tensor, seen
    cuda.current_context().deallocations.clear()
    torch.cuda.empty_cache()
    assert free_mib() == before + 2  # with the page of the first tensor


@needs("cuda-core")
@simulated
def test_what_cuda_core_takes_in_the_order_of_a_stream_is_missing_to_pytorch():
    from cuda.core import Device

    torch.zeros(1, device="cuda")
    before = free_mib()
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    buffer = device.allocate(300 * MIB, stream=stream)
    assert free_mib() == before - 300
    tensor = torch.from_dlpack(buffer)
    assert tensor.data_ptr() == int(buffer.handle)
    del tensor
    buffer.close(stream)
    stream.sync()
