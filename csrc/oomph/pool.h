/* pool.h - pools of graph captures and MemPools, and what pools give back. */
#pragma once
#include "oomph/memory.h"
#include "oomph/types.h"

#include <stdbool.h>
#include <stddef.h>

// Use counts: pages of a pool in use never move to another pool. One that is retained
// by this call is a MemPool's, and gets no host memory. Errors: of opening,
// OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_pool_retain(int device, oomph_pool_id_t pool);
// Retains the pool and says that the calling thread is about to allocate to it, on this
// stream, which perhaps captures; and that it does so no more. Where the capture fails,
// the second need not be called. While it captures no room can be made: so the first
// does, where steps have shown that the device has too little (capture.c). It may wait
// for the device then, and moves what is idle between steps. Errors: of opening,
// OOMPH_ERR_NO_MEMORY (host memory), OOMPH_ERR_DRIVER; then the pool is not retained.
oomph_status_t oomph_pool_begin(int device, oomph_pool_id_t pool, oomph_stream_t stream,
                                bool stream_lives);
// Errors: OOMPH_ERR_STATE (the device is not open), OOMPH_ERR_NO_MEMORY (host memory),
// OOMPH_ERR_DRIVER; it counts all the same.
oomph_status_t oomph_pool_end(int device, oomph_stream_t stream, bool stream_lives);
// Errors: OOMPH_ERR_STATE (the device is not open), OOMPH_ERR_INVALID (it is not in
// use).
oomph_status_t oomph_pool_release(int device, oomph_pool_id_t pool);
// 0 where the device is not open.
int oomph_pool_use_count(int device, oomph_pool_id_t pool);

typedef enum oomph_pool_flag {
    OOMPH_POOL_ON_OOM = 1,   // its free pages may serve other pools before an error
    OOMPH_POOL_NO_SPLIT = 2, // a free block serves only whole
} oomph_pool_flag_t;
// Errors: of opening, OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_pool_set_flag(int device, oomph_pool_id_t pool,
                                   oomph_pool_flag_t flag, bool on);

// Memory of a pool that comes from elsewhere, such as NCCL's allocator. Called with
// no lock held. `take` returns 0 when it has none; it may replace the source. `take`
// NULL: the pool's memory is ours again.
typedef struct oomph_source {
    oomph_addr_t (*take)(void *context, size_t bytes, oomph_stream_t stream);
    void (*give)(void *context, oomph_addr_t addr);
    void *context;
} oomph_source_t;
// Errors: of opening, OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_pool_set_source(int device, oomph_pool_id_t pool,
                                     const oomph_source_t *source);

// Puts a block back into use at an address that is free in the pool, as restoring
// the state of a captured graph needs. Errors: OOMPH_ERR_INVALID if it is not free.
oomph_status_t oomph_revive(const oomph_request_t *request, oomph_addr_t addr);

// Returns free pages to the driver, after waiting for the work that used them: those
// of one pool, or for {0, 0} of every pool that no graph holds. Never fails: what the
// driver does not take back stays, and a device that was never used has nothing.
oomph_status_t oomph_empty_cache(int device, oomph_pool_id_t pool, size_t *freed_bytes);

// Whether a stream captures on the device, so that nothing may be freed on the side.
bool oomph_captures(int device);
