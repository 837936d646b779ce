/* guard.c - use after free, caught: what the setting `guard` does.
 *
 * - UNMAP: each block of the default pools has pages of its own. When it is freed it
 *   waits, as a block that other streams use does, until all its streams have come
 *   past the free, its own among them. Then its pages are unmapped, to serve elsewhere;
 *   its address space goes into quarantine. Whatever still uses it faults. CUDA does
 * not say at which address: so the blocks unmapped last are kept in a ring, with the
 * lines that took and freed them.
 * - SYNC: whoever frees a block waits for its streams, so that it is unmapped on return
 *   and work queued later on the same streams faults too.
 * - FILL: all bits of a block are set, in the order of its stream, when it is taken,
 *   and when it is freed and other streams are done with it.
 *
 * Quarantined address space stays reserved, so that nobody else gets it. Where a
 * quarter of what a process has of it is quarantined, or the driver gives no more, the
 * oldest of it is used again, and counted.
 *
 * Exempt are pools of graphs and MemPools, buffers of our own, and memory that was
 * adopted rather than mapped.
 */
#include "core/device/guard.h"
#include "core/device/sync.h"

#include <stdlib.h>

#define SPACE_MAX                                                                      \
    ((size_t)1 << 45) // bytes of quarantined address space, of all devices

size_t oomph_guard_bytes(const oomph_device_t *device, oomph_pool_id_t pool,
                         size_t bytes)
{
    bool guarded = oomph_guards(OOMPH_GUARD_UNMAP) && oomph_is_default_pool(pool);

    return guarded ? oomph_round_up(bytes, device->pages.page_bytes) : bytes;
}

static size_t rounding(const oomph_block_t *block)
{
    return block->bytes - oomph_round_up(block->use.requested_bytes, OOMPH_ROUND_BYTES);
}

/* ---- Filling */

static oomph_status_t fill(const oomph_device_t *device, const oomph_block_t *block,
                           oomph_stream_t handle)
{
    const oomph_pool_t *pool = oomph_block_pool(block);

    if (!oomph_guards(OOMPH_GUARD_FILL) || pool->group != NULL ||
        oomph_stream_captures(&device->streams, pool->stream))
        return OOMPH_OK;
    return oomph_process.driver->fill(device->ordinal, block->addr, block->bytes,
                                      handle);
}

/* ---- Taking */

oomph_status_t oomph_guard_admit(oomph_device_t *device, oomph_block_t *block,
                                 const oomph_request_t *request, oomph_uses_t **uses)
{
    oomph_guarded_t *guard = &device->guard;
    oomph_pool_t *pool = oomph_block_pool(block);
    bool guarded = oomph_guards(OOMPH_GUARD_UNMAP) && pool->group == NULL &&
                   block->segment->kind == OOMPH_SEGMENT_VIRTUAL;

    if (guarded && guard->ring == NULL)
        guard->ring = calloc(OOMPH_UNMAPPED_KEPT, sizeof *guard->ring);
    *uses = guarded ? oomph_uses_new(&pool->stream->clock) : NULL;
    if (guarded && (guard->ring == NULL || *uses == NULL)) {
        oomph_uses_free(*uses);
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory to guard a block");
    }
    oomph_status_t status = fill(device, block, request->stream);
    if (status != OOMPH_OK)
        oomph_uses_free(*uses);
    return status;
}

void oomph_guard_attach(oomph_device_t *device, oomph_block_t *block,
                        oomph_uses_t *uses)
{
    oomph_assert(((block->addr | block->bytes) & (device->pages.page_bytes - 1)) == 0);
    oomph_uses_attach(uses, block);
    block->guarded = true;
    device->guard.rounding_bytes += rounding(block);
}

/* ---- Taking back */

// Tells the embedder what is about to be unmapped, without the lock. The blocks count
// as deferred meanwhile; nobody else knows them.
static void announce(oomph_device_t *device, const oomph_uses_t *done)
{
    const oomph_hooks_t *hooks = &oomph_process.hooks;
    size_t count = 0;

    if (hooks->unmapping == NULL || !atomic_load(&oomph_process.watched))
        return;
    for (const oomph_uses_t *uses = done; uses != NULL; uses = uses->next)
        count++;
    device->deferred.count += count;
    oomph_unlock(device);
    for (const oomph_uses_t *uses = done; uses != NULL; uses = uses->next) {
        const oomph_block_t *block = uses->block;
        if (block->guarded)
            hooks->unmapping(device->ordinal, block->addr, block->bytes,
                             oomph_block_pool(block)->stream->handle);
    }
    oomph_lock(device);
    device->deferred.count -= count;
}

static void note(oomph_guarded_t *guard, const oomph_uses_t *uses)
{
    const oomph_block_t *block = uses->block;

    guard->ring[guard->unmapped++ % OOMPH_UNMAPPED_KEPT] =
        (oomph_unmapped_t){.addr = block->addr,
                           .bytes = block->bytes,
                           .requested_bytes = block->use.requested_bytes,
                           .stream = oomph_block_pool(block)->stream->handle,
                           .tier = (oomph_tier_t)block->tier,
                           .taken_at = block->site,
                           .freed_at = uses->freed_at,
                           .freed_ns = uses->freed_ns,
                           .unmapped_ns = oomph_now_ns()};
}

oomph_uses_t *oomph_guard_unmap(oomph_device_t *device, oomph_uses_t *done)
{
    oomph_uses_t **link = &done;

    if (done != NULL)
        announce(device, done);
    while (*link != NULL) {
        oomph_uses_t *uses = *link;
        const oomph_block_t *block = uses->block;
        bool stays = !block->guarded || block->leaked;
        if (!stays && oomph_segment_unmap_block(block, &device->pages) != OOMPH_OK) {
            *link = uses->next; // the driver may do so later
            oomph_uses_wait(&device->deferred, uses);
            continue;
        }
        if (!stays)
            note(&device->guard, uses);
        link = &uses->next;
    }
    return done;
}

void oomph_guard_give(oomph_device_t *device, oomph_block_t *block)
{
    if (block->guarded) {
        device->guard.rounding_bytes -= rounding(block);
        device->guard.space_bytes += block->bytes;
        oomph_heap_quarantine(block);
        return;
    }
    oomph_heap_give(block);
}

void oomph_guard_fill(const oomph_device_t *device, const oomph_block_t *block)
{
    const oomph_stream_state_t *stream = oomph_block_pool(block)->stream;

    // What the driver does not fill now, it fills when the block is taken again.
    if (!block->buffer && !block->guarded && stream->lives)
        fill(device, block, stream->handle);
}

void oomph_guard_wait(oomph_device_t *device)
{
    oomph_clock_t *clock;

    do
        clock = oomph_streams_awaited(&device->streams);
    while (clock != NULL && oomph_wait_for(device, clock));
}

/* ---- Address space */

// Whether nothing lies in the segment any more, and nothing is to come: not in the
// newest as long as it has room, unless there is need.
static bool is_used_up(const oomph_segment_t *segment, bool need)
{
    const oomph_block_t *first = segment->first;

    if (segment->kind != OOMPH_SEGMENT_VIRTUAL || segment->mapped_count > 0)
        return false;
    if (first->next == NULL)
        return first->quarantined;
    return need || segment->prev != NULL;
}

bool oomph_guard_keep(oomph_device_t *device, oomph_segment_t *segment, bool need)
{
    oomph_guarded_t *guard = &device->guard;

    if (!is_used_up(segment, need))
        return false;
    guard->space_bytes += oomph_heap_quarantine_all(segment);
    oomph_range_t *range = malloc(sizeof *range);
    if (range != NULL) { // or else it is never used again
        *range = (oomph_range_t){NULL, segment->base, segment->bytes};
        *(guard->oldest == NULL ? &guard->oldest : &guard->newest->next) = range;
        guard->newest = range;
    }
    oomph_segment_retire(segment, &device->pages);
    return true;
}

// Of all segments that are used up.
static void keep_all(oomph_device_t *device, bool need)
{
    for (oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next)
        for (oomph_segment_t *s = pool->heap.segments, *next; s != NULL; s = next) {
            next = s->next;
            oomph_guard_keep(device, s, need);
        }
}

// The oldest quarantined range of at least `bytes`.
static oomph_status_t reuse(oomph_pool_t *pool, size_t bytes)
{
    oomph_device_t *device = pool->device;
    oomph_guarded_t *guard = &device->guard;
    oomph_range_t **link = &guard->oldest, *before = NULL;
    oomph_segment_t *segment;

    for (; *link != NULL && (*link)->bytes < bytes; link = &before->next)
        before = *link;
    oomph_range_t *range = *link;
    if (range == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no address space is left for %s",
                          oomph_size_text(bytes).text);
    oomph_status_t status = oomph_segment_reserve_at(
        &pool->heap, &device->pages, range->addr, range->bytes, &segment);
    if (status != OOMPH_OK)
        return status;
    *link = range->next;
    if (guard->newest == range)
        guard->newest = before;
    guard->space_bytes -= range->bytes;
    guard->reused_bytes += range->bytes;
    free(range);
    return OOMPH_OK;
}

oomph_status_t oomph_guard_extend(oomph_pool_t *pool, size_t bytes, size_t generous)
{
    oomph_device_t *device = pool->device;
    size_t most = SPACE_MAX / (size_t)oomph_process.device_count;
    oomph_segment_t *segment;

    keep_all(device, false);
    if (device->guard.space_bytes >= most && reuse(pool, bytes) == OOMPH_OK)
        return OOMPH_OK;
    oomph_status_t status =
        oomph_segment_reserve(&pool->heap, &device->pages, generous, &segment);
    if (status == OOMPH_ERR_NO_MEMORY && generous > bytes)
        status = oomph_segment_reserve(&pool->heap, &device->pages, bytes, &segment);
    if (status != OOMPH_ERR_NO_MEMORY)
        return status;
    keep_all(device, true);
    return reuse(pool, bytes);
}

/* ---- Telling */

oomph_status_t oomph_unmapped(int ordinal, oomph_unmapped_t *rows, size_t capacity,
                              size_t *count)
{
    oomph_device_t *device = oomph_device_peek(ordinal);

    *count = 0;
    if (device == NULL)
        return OOMPH_OK;
    oomph_lock(device);
    const oomph_guarded_t *guard = &device->guard;
    *count = (size_t)(guard->unmapped < OOMPH_UNMAPPED_KEPT ? guard->unmapped
                                                            : OOMPH_UNMAPPED_KEPT);
    for (size_t i = 0; i < *count && i < capacity; i++)
        rows[i] = guard->ring[(guard->unmapped - 1 - i) % OOMPH_UNMAPPED_KEPT];
    oomph_unlock(device);
    return OOMPH_OK;
}
