/* deferred.h - blocks that wait, once freed, until others than their own stream are
 * done with them. The caller holds the device lock.
 */
#pragma once
#include "core/stream/capture.h"
#include "core/stream/clock.h"

typedef struct oomph_use {
    oomph_clock_t *clock;
    uint64_t epoch; // once freed: what must have passed
} oomph_use_t;

// Takes the place of a block's user pointer while the block is `shared`.
typedef struct oomph_uses {
    struct oomph_uses *next; // in the list of deferred frees
    oomph_block_t *block;
    void *user;
    oomph_site_t freed_at; // of a guarded block: who freed it; 0: unknown
    int64_t freed_ns;      // and when
    int64_t freed_in_step; // of a buffer: the number of the step
    size_t count;
    oomph_use_t use[];
} oomph_uses_t;

typedef struct oomph_deferred {
    oomph_uses_t *first, **last; // freed blocks that wait, oldest first
    size_t count;
} oomph_deferred_t;

// Notes that the block, once freed, waits for the clock. Errors: OOMPH_ERR_NO_MEMORY
// (host memory).
oomph_status_t oomph_uses_add(oomph_block_t *block, oomph_clock_t *clock);
// Uses that name one clock, for a block to come; NULL without host memory.
oomph_uses_t *oomph_uses_new(oomph_clock_t *clock);
void oomph_uses_free(oomph_uses_t *uses); // NULL: nothing
// Makes them those of a block that is not shared.
void oomph_uses_attach(oomph_uses_t *uses, oomph_block_t *block);
// Defers the free of a shared block. Its streams must exist, but for its `own`.
void oomph_uses_defer(oomph_deferred_t *deferred, oomph_streams_t *streams,
                      oomph_block_t *block, const oomph_stream_state_t *own);
// Takes out the blocks whose clocks have passed, linked by `next`. Records the events
// that they wait for, where that has not happened yet.
oomph_uses_t *oomph_uses_collect(oomph_deferred_t *deferred, oomph_streams_t *streams);
// Takes out the buffer of the heap that was freed first, if that was before `step`,
// once the heap's stream waits on the device for those that still use it. NULL: there
// is none, or the stream cannot wait.
oomph_uses_t *oomph_uses_overtake(oomph_deferred_t *deferred, oomph_streams_t *streams,
                                  const oomph_heap_t *heap,
                                  const oomph_stream_state_t *stream, int64_t step);
// Lets a block that was taken out wait again.
void oomph_uses_wait(oomph_deferred_t *deferred, oomph_uses_t *uses);

static inline void *oomph_block_user(const oomph_block_t *block)
{
    return block->shared ? ((const oomph_uses_t *)block->use.user)->user
                         : block->use.user;
}

// A block that is freed no longer names what its user has taken back.
static inline void oomph_block_forget_user(oomph_block_t *block)
{
    if (block->shared)
        ((oomph_uses_t *)block->use.user)->user = NULL;
    else
        block->use.user = NULL;
}
