"""PyTorch's own settings of its allocator, and what becomes of each under oomph.

``PYTORCH_ALLOC_CONF``, ``PYTORCH_CUDA_ALLOC_CONF`` and
``torch._C._accelerator_setAllocatorSettings`` are read, and what is wrong refused, by
PyTorch itself. What has no meaning here is said in one line of the log.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"


class Answer(NamedTuple):
    """What becomes of a setting.

    Attributes:
        meaning: How it is honoured; or else why it has no meaning here.
        default: The value that asks for nothing, of which nothing is said.
        honoured: Whether it does what PyTorch says of it.
    """

    meaning: str
    default: str = ""
    honoured: bool = False


_HOST = Answer(
    "PyTorch's allocator of pinned host memory reads it, as always", honoured=True
)
_ROUNDING = Answer(
    "blocks have the same sizes as with PyTorch's allocator; it saves nothing here, "
    "since the rest of a block can serve any request",
    honoured=True,
)
_NO_CUDAMALLOC = "oomph does not call cudaMalloc: it maps pages of 2 MiB"

ANSWERS: dict[str, Answer] = {
    "per_process_memory_fraction": Answer(
        "the most of each card that the process may use; what does not fit falls back "
        "to the host, or is an error with `offload:off`",
        honoured=True,
    ),
    "roundup_power2_divisions": _ROUNDING,
    "pinned_use_cuda_host_register": _HOST,
    "pinned_use_hip_host_register": _HOST,
    "pinned_num_register_threads": _HOST,
    "pinned_reserve_segment_size_mb": _HOST,
    "pinned_use_background_threads": _HOST,
    "expandable_segments": Answer("all segments of oomph are expandable", "True"),
    "backend": Answer("oomph is the allocator", "native"),
    "max_split_size_mb": Answer(
        "the rest of a split block is not lost: free pages move where they are needed"
    ),
    "max_non_split_rounding_mb": Answer("oomph splits a free block for any request"),
    "large_segment_size_mb": Answer("oomph maps segments page by page"),
    "garbage_collection_threshold": Answer(
        "any free page can serve the next request, so none has to be collected"
    ),
    "graph_capture_record_stream_reuse": Answer(
        "blocks that several streams use wait for the end of the capture", "False"
    ),
    "release_lock_on_cudamalloc": Answer(_NO_CUDAMALLOC, "False"),
    "release_lock_on_hipmalloc": Answer(_NO_CUDAMALLOC, "False"),
    "throw_on_cudamalloc_oom": Answer(_NO_CUDAMALLOC, "False"),
}
"""What becomes of each setting; docs/allocator_settings.md has the same table."""

_UNKNOWN = Answer("this version of oomph does not know it")
_PAIR = re.compile(r"([^,:\[\]]+):(\[[^]]*\]|[^,]*)")


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """The settings of a string that PyTorch has accepted, and their values.

    Example:
        >>> list(pairs("backend:native, roundup_power2_divisions:[256:1,>:4]"))
        [('backend', 'native'), ('roundup_power2_divisions', '[256:1,>:4]')]
    """
    yield from _PAIR.findall("".join(text.split()))


@functools.cache
def _report_once(key: str, value: str) -> None:
    """Says once why a setting has no effect."""
    from oomph.base.log import logger

    reason = ANSWERS.get(key, _UNKNOWN).meaning
    logger.warning("PyTorch's setting %s:%s has no effect: %s", key, value, reason)


def note(text: str) -> None:
    """Settings were made: says which have no effect. Called by ``oomph._torch``."""
    for key, value in pairs(text):
        answer = ANSWERS.get(key, _UNKNOWN)
        if not answer.honoured and value != answer.default:
            _report_once(key, value)


def follow(torch: ModuleType, torch_class: ModuleType) -> None:
    """Hears of PyTorch's settings from now on."""

    def look() -> None:
        if UNCACHED in os.environ:
            from oomph.base.log import logger

            torch._C._cuda_cudaCachingAllocator_enable(False)
            logger.warning(
                "%s is set: each tensor comes from the driver, without oomph; to find "
                "memory that is used after it was freed, use guard:unmap instead",
                UNCACHED,
            )

    torch_class.set_settings_hook(note)
    torch.cuda._lazy_call(look)  # when CUDA is used first, as PyTorch does
