"""Mutations of the core and of PyTorch's side."""

from __future__ import annotations

from mutations.mutation import Mutation

MUTATIONS = {
    "a host page that cannot be made stays counted": Mutation(
        "csrc/core/memory/page.c",
        """\
        if (tier == OOMPH_TIER_HOST)
            oomph_host_limit_give(pages->host, pages->page_bytes);
        else
            pages->known_free_bytes = 0;
""",
        """\
        if (tier == OOMPH_TIER_DEVICE)
            pages->known_free_bytes = 0;
""",
        ("c:test_host_faults", "c:test_host", "c:test_faults"),
    ),
    "an epoch does not cover the default stream": Mutation(
        "csrc/core/stream/clock.c",
        """\
    if (status == OOMPH_OK)
        status = join(streams, event, NULL);
""",
        "",
        ("c:test_order", "c:test_epochs"),
    ),
    "a swap is undone with the pages of another run": Mutation(
        "csrc/core/memory/swap.c",
        "        page -= run->count;\n",
        "",
        ("c:test_move", "c:test_faults"),
    ),
    "the smallest return to the device first": Mutation(
        "csrc/core/control/promote.c",
        "return (a->bytes < b->bytes) - (a->bytes > b->bytes);",
        "return (a->bytes > b->bytes) - (a->bytes < b->bytes);",
        ("c:test_promote", "tests/allocator/test_residency.py"),
    ),
    "a freed block on the host stays counted there": Mutation(
        "csrc/core/alloc/free.c",
        """\
    if (block->tier == OOMPH_TIER_HOST)
        oomph_tier_usage_move(&device->allocated_usage,
                              &device->counters.allocated_bytes,
                              -(int64_t)oomph_block_host_bytes(block));
""",
        "",
        ("c:test_host", "tests/allocator/test_stats.py"),
    ),
    "what comes to the host counts as what stayed, too": Mutation(
        "csrc/core/control/host_use.c",
        "block->survived > 0 && ",
        "",
        ("c:test_host_use",),
    ),
    "a failed import leaves pages mapped": Mutation(
        "csrc/core/control/ipc.c",
        "    else\n        done--;\n",
        "",
        ("c:test_ipc", "c:test_faults"),
    ),
    "the layout has the shorter of two lives": Mutation(
        "csrc/core/layout/layout.c",
        """\
        if (newer > life && newer <= period)
            life = newer;
""",
        "",
        ("c:test_layout", "c:test_alloc"),
    ),
    "copies that failed while they ran pass for done": Mutation(
        "csrc/driver/cuda_work.c",
        """\
    if (scope.status == OOMPH_OK)
        scope.status = oomph_cuda_check(waited, "cuStreamSynchronize");
""",
        "    (void)waited;\n",
        ("c:test_driver", "c:test_move", "c:test_faults"),
    ),
    "a history that was cleared begins in the middle": Mutation(
        "csrc/torch/allocator/history.hpp",
        "        std::fill(next_.begin(), next_.end(), 0);\n",
        "",
        (
            "tests/allocator/test_history.py::test_recording_again_can_clear_the_trace",
            "tests/allocator/test_history.py",
            "tests/pytorch/test_cuda_snapshot.py",
        ),
    ),
    "the oldest of several pools gets a request": Mutation(
        "csrc/torch/allocator/pools.hpp",
        "auto i = routes.rbegin(); i != routes.rend(); ++i",
        "auto i = routes.begin(); i != routes.end(); ++i",
        (
            "tests/allocator/test_pools.py::test_the_innermost_pool_wins",
            "tests/allocator/test_pools.py",
            "tests/pytorch/test_cuda_mempool.py",
        ),
    ),
}
