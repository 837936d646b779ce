"""What oomph does otherwise than PyTorch's allocator on purpose, by PyTorch's tests.

docs/pytorch_tests.md shows both tables; test_differences.py holds them together.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    """One line of the table."""

    what: str
    why: str


DIFFERENCES: dict[str, Difference] = {
    "test_allocator_backend": Difference(
        "the backend is oomph, whatever PYTORCH_ALLOC_CONF asks for",
        "a process has one allocator, and oomph was asked for by name",
    ),
    "test_graph_capture_reclaim_2_streams": Difference(
        "a block that several streams of a capture use does not serve the same capture "
        "again, whatever graph_capture_record_stream_reuse says",
        "it waits for the end of the capture: nothing is read from unfinished graphs",
    ),
    "test_graph_capture_reclaim_4_streams": Difference(
        "likewise",
        "likewise",
    ),
    "test_record_stream": Difference(
        "a block that another stream has used serves again within eight allocations, "
        "or when nothing else fits, not at the next one",
        "asking the driver at each allocation costs more than an allocation does",
    ),
}

# What is of the kind, and is not here; PyTorch's allocator could not be shown either.
NOT_HERE = {
    "test_graph_external_wait_and_record": "a kernel that is compiled at run time",
    "test_cusparse_multiple_threads_same_device": "sparse matrices are not simulated",
    "test_greencontext_restores_stream": "green contexts are not simulated",
    "test_gds_read_write_tensors": "GPUDirect Storage is not simulated",
    "test_device_memory_used": "needs nvidia-ml-py, which PyTorch does without",
    "test_nvml_get_handler": "needs nvidia-ml-py, which PyTorch does without",
    "test_accelerator_graph_simple": "torch.accelerator.Graph is newer than 2.11",
}
