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


class Newer(NamedTuple):
    """What a version of PyTorch brought: those before, or from then on, fail."""

    since: str
    what: str


_IN_CAPTURE = Newer("2.11", "pinned memory in a capture")
_HOLDS_ALLOCATOR = Newer(
    "2.11", "a MemPool keeps its allocator alive: 2.10 uses it after it was deleted"
)
# By PyTorch's tests, and by those of test_cuda_newer.py.
NEWER: dict[str, Newer] = {
    "test_pin_memory_no_use": _IN_CAPTURE,
    "test_pin_memory_no_use2": _IN_CAPTURE,
    "test_pin_memory_use": _IN_CAPTURE,
    "test_two_graphs": _IN_CAPTURE,
    "test_unpinned_memory_use": Newer("2.11", "its error in a capture"),
    "test_unpinned_memory_use_device_to_host": Newer("2.11", "its error in a capture"),
    "test_tensor_delete_after_allocator_delete": _HOLDS_ALLOCATOR,
    "test_mempool_expandable": _HOLDS_ALLOCATOR,
    "test_memory_snapshot_skip_actions": Newer("2.11", "`skip_actions`"),
    "test_cpp_memory_snapshot_pickle": Newer("2.11", "`skip_actions` in C++"),
    "test_allocation_traceback": Newer("2.12", "`_allocation_traceback()`"),
    "test_oom_rejections": Newer("2.12", "the figure `num_oom_rejections`"),
    "test_reserved_by_private_pools": Newer(
        "2.13", "the figure `reserved_bytes_by_private_pools`"
    ),
    "test_accelerator_snapshot": Newer(
        "2.13", "`torch.accelerator.memory._snapshot()`"
    ),
    "test_annotate_tensor": Newer("2.14", "`_annotate_tensor()`"),
    "test_metadata_supported": Newer("2.14", "`_memory_metadata_supported()`"),
    "test_metadata_of_a_dict": Newer("2.15", "metadata that is a dict"),
}

# What a later PyTorch does otherwise than its tests of 2.11 say: these fail from then.
CHANGED: dict[str, Newer] = {
    "test_cpp_memory_snapshot_pickle": Newer(
        "2.15", "its C++ function is declared and not exported"
    ),
    "test_cublas_workspace_explicit_allocation": Newer(
        "2.15", "`CUBLAS_WORKSPACE_CONFIG` is read once"
    ),
    "test_graph_debugdump": Newer(
        "2.15",
        "graphs are printed by NVIDIA's cuda-bindings, whose own runtime needs tables "
        "of the real driver",
    ),
    "test_memory_stats_of_multiple_generators_and_graphs": Newer(
        "2.15", "graphs keep states of the generators alone that they draw from"
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
