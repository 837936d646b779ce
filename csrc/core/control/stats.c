/* stats.c - the statistics of a device: counters that are kept in several places. */
#include "core/alloc/free.h"
#include "core/heap/heap.h"

#include <string.h>

static int64_t record_bytes(const oomph_device_t *device)
{
    size_t bytes = sizeof *device + device->slab.bytes +
                   device->table.capacity * sizeof(oomph_map_entry_t);

    for (const oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next) {
        bytes += sizeof *pool + oomph_heap_record_bytes(&pool->heap) +
                 oomph_layout_record_bytes(&pool->layout);
        for (const oomph_segment_t *s = pool->heap.segments; s != NULL; s = s->next)
            bytes += sizeof *s + s->mapped_count * sizeof(oomph_page_entry_t);
        for (const oomph_segment_t *s = pool->arena.segments; s != NULL; s = s->next)
            bytes += sizeof *s + s->mapped_count * sizeof(oomph_page_entry_t);
    }
    return (int64_t)bytes;
}

static void count_layouts(const oomph_device_t *device, oomph_stats_t *stats)
{
    for (const oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next)
        stats->layout_bytes += (int64_t)pool->layout.bytes;
}

oomph_status_t oomph_get_stats(int ordinal, oomph_stats_t *stats)
{
    oomph_device_t *device = oomph_enter_open(ordinal);

    memset(stats, 0, sizeof *stats);
    stats->host_limit_bytes = (int64_t)oomph_process.host.limit_bytes;
    if (device == NULL)
        return OOMPH_OK;
    const oomph_pages_t *pages = &device->pages;
    *stats = device->stats;
    const oomph_counters_t *counters = &device->counters;
    oomph_counter_report(&counters->allocation, stats->allocation);
    oomph_counter_report(&counters->active, stats->active);
    oomph_counter_report(&counters->allocated_bytes, stats->allocated_bytes);
    oomph_counter_report(&counters->active_bytes, stats->active_bytes);
    oomph_counter_report(&counters->requested_bytes, stats->requested_bytes);
    oomph_counter_report(&pages->segment, stats->segment);
    oomph_counter_report(&pages->mapped_bytes, stats->reserved_bytes);
    stats->device_alloc_count = pages->create_count;
    stats->device_free_count = pages->release_count;
    for (int tier = 0; tier < OOMPH_TIERS; tier++) {
        stats->tier_bytes[tier] = (int64_t)oomph_pages_bytes(pages, (oomph_tier_t)tier);
        stats->tier_peak_bytes[tier] = (int64_t)pages->peak_bytes[tier];
    }
    stats->host_limit_bytes = (int64_t)oomph_process.host.limit_bytes;
    stats->device_limit_bytes =
        pages->limit_bytes == SIZE_MAX ? 0 : (int64_t)pages->limit_bytes;
    stats->foreign_bytes = (int64_t)pages->adopted_bytes[OOMPH_TIER_DEVICE];
    stats->page_bytes = (int64_t)pages->page_bytes;
    stats->host_kind = pages->host_kind;
    stats->host_block_bytes = device->allocated_usage.host;
    stats->record_bytes = record_bytes(device);
    stats->guard_blocks = (int64_t)device->guard.unmapped;
    stats->guard_rounding_bytes = (int64_t)device->guard.rounding_bytes;
    stats->guard_space_bytes = (int64_t)device->guard.space_bytes;
    stats->guard_reused_bytes = (int64_t)device->guard.reused_bytes;
    count_layouts(device, stats);
    oomph_unlock(device);
    return OOMPH_OK;
}

oomph_status_t oomph_get_pool_stats(int ordinal, oomph_pool_stats_t *rows,
                                    size_t capacity, size_t *count)
{
    oomph_device_t *device = oomph_enter_open(ordinal);

    *count = 0;
    if (device == NULL)
        return OOMPH_OK;
    for (const oomph_group_t *group = device->groups; group != NULL;
         group = group->next) {
        if (*count < capacity) {
            oomph_pool_stats_t *row = &rows[*count];
            *row = (oomph_pool_stats_t){.pool = group->id};
            oomph_counter_report(&group->mapped_bytes, row->reserved_bytes);
        }
        ++*count;
    }
    oomph_unlock(device);
    return OOMPH_OK;
}

// Every counter that PyTorch resets, wherever it is kept.
static void each_counter(oomph_device_t *device, void (*change)(oomph_counter_t *))
{
    oomph_counters_t *counters = &device->counters;

    change(&counters->allocation);
    change(&counters->active);
    change(&counters->allocated_bytes);
    change(&counters->active_bytes);
    change(&counters->requested_bytes);
    change(&device->pages.segment);
    change(&device->pages.mapped_bytes);
    for (oomph_group_t *group = device->groups; group != NULL; group = group->next)
        change(&group->mapped_bytes);
}

oomph_status_t oomph_reset_peak_stats(int ordinal)
{
    oomph_device_t *device = oomph_enter_open(ordinal);

    if (device == NULL)
        return OOMPH_OK;
    each_counter(device, oomph_counter_reset_peak);
    oomph_site_reset_peak(&device->sites);
    for (int tier = 0; tier < OOMPH_TIERS; tier++)
        device->pages.peak_bytes[tier] =
            oomph_pages_bytes(&device->pages, (oomph_tier_t)tier);
    oomph_unlock(device);
    return OOMPH_OK;
}

oomph_status_t oomph_reset_accumulated_stats(int ordinal)
{
    oomph_device_t *device = oomph_enter_open(ordinal);

    if (device == NULL)
        return OOMPH_OK;
    each_counter(device, oomph_counter_reset_accumulated);
    device->stats.retry_count = device->stats.oom_count = device->stats.sync_count = 0;
    device->pages.create_count = device->pages.release_count = 0;
    device->ask_again_at = 0;
    oomph_unlock(device);
    return OOMPH_OK;
}
