/* free.c - taking memory back, and the other streams that use it (oomph/memory.h).
 *
 * A free never waits for the GPU, nor for the lock: a thread that finds it taken leaves
 * the block in a queue, which whoever enters next processes.
 */
#include "core/alloc/free.h"
#include "core/device/guard.h"
#include "core/device/lookup.h"
#include "core/device/steal.h"
#include "core/memory/owner.h"

#include <stdlib.h>

#define EPOCH_BYTES ((size_t)64 << 20) // freed under pressure before an epoch is closed

// It becomes a block that no caller knows.
OOMPH_COLD static void keep_for_ever(oomph_block_t *block)
{
    block->state = OOMPH_BLOCK_USED;
    block->use.requested_bytes = 0;
    block->use.user = NULL;
    block->site = 0;
}

// The block's memory may be used again, in the order of its stream.
static inline void release(oomph_device_t *device, oomph_pool_t *pool,
                           oomph_block_t *block)
{
    if (block->workspace)
        pool->stream->workspace_bytes -= block->bytes;
    if (block->tier == OOMPH_TIER_HOST)
        oomph_level_up(&device->host_need.live,
                       -(int64_t)oomph_block_host_bytes(block));
    if (!block->buffer) {
        oomph_counter_down(&device->counters.active, pool->small, 1);
        oomph_counter_down(&device->counters.active_bytes, pool->small,
                           (int64_t)block->bytes);
        oomph_counter_down(&device->counters.requested_bytes, pool->small,
                           (int64_t)block->use.requested_bytes);
        if (block->tier == OOMPH_TIER_HOST)
            oomph_tier_usage_move(&device->active_usage, &device->counters.active_bytes,
                                  -(int64_t)oomph_block_host_bytes(block));
    }
    if (oomph_process.config.guard != OOMPH_GUARD_OFF)
        oomph_guard_fill(device, block);
    if (device->under_pressure) {
        oomph_stamp(block);
        if (device->streams.freed_bytes >= EPOCH_BYTES)
            oomph_streams_catch_up(&device->streams);
    }
    if (block->leaked)
        keep_for_ever(block);
    else if (oomph_process.config.guard != OOMPH_GUARD_OFF)
        oomph_guard_give(device, block);
    else
        oomph_heap_quick_push(block);
}

static void count_free(oomph_device_t *device, const oomph_block_t *block, bool small)
{
    int64_t bytes = (int64_t)block->bytes;

    if (block->buffer) {
        device->stats.buffer_bytes -= bytes;
        return;
    }
    oomph_counter_down(&device->counters.allocation, small, 1);
    oomph_counter_down(&device->counters.allocated_bytes, small, bytes);
    if (block->tier == OOMPH_TIER_HOST)
        oomph_tier_usage_move(&device->allocated_usage,
                              &device->counters.allocated_bytes,
                              -(int64_t)oomph_block_host_bytes(block));
}

OOMPH_COLD static void defer(oomph_device_t *device, oomph_pool_t *pool,
                             oomph_block_t *block, oomph_site_t site)
{
    oomph_uses_t *uses = block->use.user;

    if (block->guarded) {
        uses->freed_at = site;
        uses->freed_ns = oomph_now_ns();
    }
    uses->freed_in_step = device->stats.step_count;
    oomph_uses_defer(&device->deferred, &device->streams, block, pool->stream);
}

// `site`: who frees it, where that is wanted.
static inline oomph_status_t free_block(oomph_device_t *device, oomph_addr_t addr,
                                        oomph_site_t site, oomph_block_info_t *freed)
{
    oomph_block_t *block = oomph_table_take(&device->table, addr);
    if (block == NULL)
        return oomph_fail(OOMPH_ERR_INVALID,
                          "0x%llx is not a block in use (freed twice?)",
                          (unsigned long long)addr);
    oomph_pool_t *pool = oomph_block_pool(block);
    if (freed != NULL) {
        oomph_describe(block, freed);
        freed->state = block->shared ? OOMPH_BLOCK_DEFERRED : OOMPH_BLOCK_FREE;
    }
    oomph_block_forget_user(block);
    if (block->site != 0)
        oomph_site_count(&device->sites, block->site, -(int64_t)block->bytes);
    count_free(device, block, pool->small);
    if (block->recorded)
        oomph_record_note_free(&pool->layout.record, block->record, block->bytes);
    if (block->shared)
        defer(device, pool, block, site);
    else
        release(device, pool, block);
    return OOMPH_OK;
}

OOMPH_COLD static oomph_notice_t completed(const oomph_block_t *block)
{
    oomph_block_info_t info;

    oomph_describe(block, &info);
    return (oomph_notice_t){OOMPH_NOTICE_FREED,   info.device, info.addr,
                            info.requested_bytes, info.stream, info.pool};
}

static void complete(oomph_device_t *device, oomph_uses_t *done)
{
    while (done != NULL) {
        oomph_uses_t *next = done->next;
        if (!done->block->buffer)
            oomph_notices_add(&device->pages.notices, completed(done->block));
        release(device, oomph_block_pool(done->block), done->block);
        oomph_uses_free(done);
        done = next;
    }
}

bool oomph_collect(oomph_device_t *device)
{
    bool any = oomph_drain_queue(device);
    oomph_uses_t *done = oomph_uses_collect(&device->deferred, &device->streams);

    if (oomph_guards(OOMPH_GUARD_UNMAP))
        done = oomph_guard_unmap(device, done);
    any = any || done != NULL;
    complete(device, done);
    return any;
}

bool oomph_overtake(oomph_device_t *device, const oomph_pool_t *pool)
{
    if (oomph_guards(OOMPH_GUARD_UNMAP))
        return false; // what is unmapped must be done with
    oomph_uses_t *freed =
        oomph_uses_overtake(&device->deferred, &device->streams, &pool->heap,
                            pool->stream, device->stats.step_count);
    complete(device, freed);
    return freed != NULL;
}

/* ---- Frees that found the lock taken */

#define READ ((oomph_addr_t)1) // what stood there has been freed; no block's address

static bool queue_free(oomph_free_queue_t *queue, oomph_addr_t addr)
{
    uint32_t head = atomic_load(&queue->head);

    do {
        if (head - atomic_load(&queue->tail) >= OOMPH_FREE_QUEUE)
            return false; // full
    } while (!atomic_compare_exchange_weak(&queue->head, &head, head + 1));
    atomic_store(&queue->addr[head % OOMPH_FREE_QUEUE], addr);
    return true;
}

bool oomph_drain_queue(oomph_device_t *device)
{
    oomph_free_queue_t *queue = &device->queue;
    uint32_t tail = atomic_load_explicit(&queue->tail, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&queue->head, memory_order_acquire);
    bool any = false, waits = false;

    for (; tail != head; tail++) {
        _Atomic(oomph_addr_t) *place = &queue->addr[tail % OOMPH_FREE_QUEUE];
        oomph_addr_t addr = atomic_load(place);
        // Its writer, perhaps stopped, keeps the place and those behind it from being
        // taken again, but not what stands there from being freed.
        waits = waits || addr == 0;
        if (addr == 0)
            continue;
        atomic_store(place, waits ? READ : 0);
        if (!waits)
            atomic_store(&queue->tail, tail + 1);
        if (addr != READ) {
            free_block(device, addr, 0, NULL);
            any = true;
        }
    }
    return any;
}

oomph_status_t oomph_enter_device(int ordinal, oomph_device_t **device)
{
    oomph_status_t status = oomph_device_get(ordinal, device);

    if (status == OOMPH_OK)
        oomph_enter(*device);
    return status;
}

oomph_device_t *oomph_enter_open(int ordinal)
{
    oomph_device_t *device = oomph_device_peek(ordinal);

    if (device != NULL)
        oomph_enter(device);
    return device;
}

/* ---- Frees of the collector of garbage */

// One thread collects at a time; only that reads `thread` and `bytes`.
static struct {
    atomic_bool is_on;
    pthread_t thread;
    size_t bytes;
} collection;

void oomph_collection_begin(void)
{
    collection.thread = pthread_self();
    collection.bytes = 0;
    atomic_store(&collection.is_on, true);
}

size_t oomph_collection_end(void)
{
    atomic_store(&collection.is_on, false);
    return collection.bytes;
}

static bool collects(void)
{
    return atomic_load_explicit(&collection.is_on, memory_order_relaxed) &&
           pthread_equal(collection.thread, pthread_self());
}

/* ---- Freeing */

// Unmaps the block as soon as that may be; who frees it is asked, and may have to wait.
OOMPH_COLD static oomph_status_t free_guarded(oomph_device_t *device, oomph_addr_t addr,
                                              oomph_block_info_t *freed)
{
    oomph_site_t site = oomph_call_site(false);

    oomph_enter(device);
    oomph_status_t status = free_block(device, addr, site, freed);
    if (status == OOMPH_OK && oomph_guards(OOMPH_GUARD_SYNC))
        oomph_guard_wait(device);
    oomph_collect(device);
    oomph_unlock(device);
    return status;
}

static oomph_status_t free_any(oomph_addr_t addr, oomph_block_info_t *freed)
{
    oomph_device_t *device = oomph_device_peek(oomph_owner(addr));
    if (device == NULL)
        return oomph_not_ours(addr);
    if (oomph_guards(OOMPH_GUARD_UNMAP))
        return free_guarded(device, addr, freed);
    if (freed != NULL) {
        oomph_enter(device);
    } else if (!oomph_lock_try(&device->lock)) {
        if (queue_free(&device->queue, addr))
            return OOMPH_OK;
        oomph_enter(device);
    }
    oomph_status_t status = free_block(device, addr, 0, freed);
    oomph_unlock(device);
    return status;
}

OOMPH_COLD static oomph_status_t free_garbage(oomph_addr_t addr,
                                              oomph_block_info_t *freed)
{
    oomph_block_info_t garbage = {0};

    freed = freed != NULL ? freed : &garbage;
    oomph_status_t status = free_any(addr, freed);
    if (status == OOMPH_OK)
        collection.bytes += freed->bytes;
    return status;
}

oomph_status_t oomph_free(oomph_addr_t addr, oomph_block_info_t *freed)
{
    if (addr == 0)
        return OOMPH_OK;
    return collects() ? free_garbage(addr, freed) : free_any(addr, freed);
}

/* ---- Other streams */

oomph_status_t oomph_record_stream(oomph_addr_t addr, int stream_device,
                                   oomph_stream_t stream, bool stream_lives)
{
    oomph_stream_state_t *user;
    oomph_device_t *device = oomph_device_peek(oomph_owner(addr)), *its;
    if (device == NULL)
        return OOMPH_OK;
    oomph_status_t status = oomph_device_get(stream_device, &its);
    if (status != OOMPH_OK)
        return status;

    oomph_enter(device);
    oomph_block_t *block = oomph_table_find(&device->table, addr);
    if (block != NULL)
        status = oomph_stream_get(&device->streams, stream_device, stream, stream_lives,
                                  &user);
    if (block != NULL && status == OOMPH_OK && user != oomph_block_pool(block)->stream)
        status = oomph_uses_add(block, &user->clock);
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_know_stream(int ordinal, oomph_stream_t stream, bool lives)
{
    oomph_device_t *device;
    oomph_stream_state_t *known;

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = oomph_stream_get(&device->streams, ordinal, stream, lives, &known);
    oomph_unlock(device);
    return status;
}
