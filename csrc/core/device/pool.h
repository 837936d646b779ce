/* pool.h - groups and pools of a device, and the address space that they take. */
#pragma once
#include "core/device/process.h"
#include "core/layout/layout.h"
#include "core/memory/segment.h"
#include "core/stream/stream.h"

// What PyTorch calls a pool: the memory of a graph capture or of a MemPool. The default
// pool {0, 0} has no group.
typedef struct oomph_group {
    struct oomph_group *next;
    oomph_pool_id_t id;
    int use_count;
    unsigned flags;   // oomph_pool_flag_t
    bool is_mem_pool; // not of a graph, or not of one alone
    bool has_source;
    size_t largest_bytes; // of a block that was asked for
    oomph_counter_t mapped_bytes;
    oomph_source_t source;
} oomph_group_t;

// The blocks of one stream, group and size class.
typedef struct oomph_pool {
    struct oomph_pool *next;
    oomph_device_t *device;
    oomph_stream_state_t *stream;
    oomph_group_t *group; // NULL: the default pool
    bool small;
    size_t users;   // of threads that go on with it after they gave up the lock
    uint64_t floor; // what was freed before counts as freed in this epoch
    oomph_heap_t heap;
    // Large blocks of the default pool only:
    oomph_layout_t layout;
    oomph_heap_t arena; // address space of the layout in force: one segment, or none
    uint32_t conflicts; // planned places found taken, since the step began
} oomph_pool_t;

static inline oomph_pool_t *oomph_block_pool(const oomph_block_t *block)
{
    return block->segment->heap->owner;
}

// Whether free pages of the pool may move elsewhere: not those of a graph or MemPool.
static inline bool oomph_pool_floats(const oomph_pool_t *pool)
{
    const oomph_group_t *group = pool->group;

    return group == NULL || group->use_count == 0 ||
           (group->flags & OOMPH_POOL_ON_OOM) != 0;
}

// The group with the id, or NULL.
oomph_group_t *oomph_group_find(const oomph_device_t *device, oomph_pool_id_t id);
// The same, made if need be. Errors: OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_group_get(oomph_device_t *device, oomph_pool_id_t id,
                               oomph_group_t **group);
// The pool that serves a request of `bytes` (rounded), made if need be. Errors:
// OOMPH_ERR_NO_MEMORY (host memory), OOMPH_ERR_DRIVER.
oomph_status_t oomph_pool_find(oomph_device_t *device, const oomph_request_t *request,
                               size_t bytes, oomph_pool_t **pool);
// Address space for `bytes` more in the heap. Errors: OOMPH_ERR_NO_MEMORY,
// OOMPH_ERR_DRIVER.
oomph_status_t oomph_pool_extend(oomph_pool_t *pool, size_t bytes);
// Drops segments that hold nothing, and pools of groups that are gone.
void oomph_pools_prune(oomph_device_t *device);
