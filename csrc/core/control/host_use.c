/* host_use.c - what a step used on host pages, whatever had put it there.
 *
 * - A block counts when it comes to the host, which alloc.c and move.c see, and again
 *   in each step that it stays there for the whole of, which is seen here at its end.
 *   So one that the next step frees, such as a gradient, counts once. What moved there
 *   between steps, as it is idle, counts at the end of the next.
 * - What was worked on in copies alone does not, nor do buffers for offloaded copies.
 * - Replays are not seen: what a graph has captured counts in each step, by pages.
 */
#include "core/control/host_use.h"
#include "core/memory/access.h"

// Whether graphs may use free pages of the pool, too.
static bool is_captured(const oomph_pool_t *pool)
{
    return pool->group != NULL && !oomph_pool_floats(pool);
}

// Of blocks that were on the host before the step, and still are.
static int64_t stayed_bytes(const oomph_device_t *device)
{
    const oomph_map_t *table = &device->table;
    int64_t bytes = 0;

    for (size_t i = 0; i < table->capacity; i++) {
        oomph_block_t *block = (oomph_block_t *)(uintptr_t)table->entries[i].value;
        if (table->entries[i].key == 0 || block->tier != OOMPH_TIER_HOST ||
            block->buffer)
            continue;
        if (block->survived > 0 && !block->copied &&
            !is_captured(oomph_block_pool(block)))
            bytes += (int64_t)oomph_block_host_bytes(block);
        if (block->survived < UINT8_MAX)
            block->survived++;
        block->copied = false;
    }
    return bytes;
}

static int64_t captured_bytes(const oomph_device_t *device)
{
    int64_t bytes = 0;

    for (const oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next) {
        if (!is_captured(pool))
            continue;
        for (const oomph_segment_t *s = pool->heap.segments; s != NULL; s = s->next)
            bytes += (int64_t)oomph_segment_captured_bytes(s);
    }
    return bytes;
}

void oomph_host_use_end_step(oomph_device_t *device)
{
    oomph_stats_t *stats = &device->stats;
    int64_t captured = 0;

    if (device->allocated_usage.host > 0)
        stats->host_used_bytes += stayed_bytes(device);
    if (oomph_pages_bytes(&device->pages, OOMPH_TIER_HOST) > 0)
        captured = captured_bytes(device);
    // What was captured in this step has counted when it came.
    bool more = captured > device->captured_host_bytes;
    stats->host_used_bytes += more ? device->captured_host_bytes : captured;
    device->captured_host_bytes = captured;
    stats->step_host_used_bytes = stats->host_used_bytes - device->step_start_host_used;
    device->step_start_host_used = stats->host_used_bytes;
}
