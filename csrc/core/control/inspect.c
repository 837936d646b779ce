/* inspect.c - which blocks a device has (oomph/block.h), and what each line of source
 * holds of them (oomph/site.h).
 */
#include "core/alloc/free.h"
#include "core/device/lookup.h"
#include "core/memory/owner.h"

#include <stdlib.h>

oomph_status_t oomph_lookup(oomph_addr_t addr, oomph_block_info_t *info)
{
    oomph_device_t *device = oomph_enter_open(oomph_owner(addr));
    oomph_status_t status = OOMPH_OK;

    if (device == NULL)
        return oomph_not_ours(addr);
    const oomph_segment_t *segment = oomph_device_segment(device, addr);
    if (segment != NULL)
        oomph_describe(oomph_segment_block(segment, addr), info);
    else
        status = oomph_fail(OOMPH_ERR_INVALID, "0x%llx does not lie in a segment",
                            (unsigned long long)addr);
    oomph_unlock(device);
    return status;
}

typedef struct visitor {
    oomph_visit_t visit;
    void *context;
} visitor_t;

// Neither holes nor buffers of ours, which the program does not know.
static void show(const oomph_block_t *block, void *context)
{
    const visitor_t *visitor = context;
    oomph_block_info_t info;

    if (block->state == OOMPH_BLOCK_HOLE ||
        (block->buffer && block->state != OOMPH_BLOCK_FREE))
        return;
    oomph_describe(block, &info);
    visitor->visit(&info, visitor->context);
}

oomph_status_t oomph_walk(int ordinal, oomph_visit_t visit, void *context)
{
    oomph_device_t *device = oomph_enter_open(ordinal);
    visitor_t visitor = {visit, context};

    if (device == NULL)
        return OOMPH_OK; // never used: there are none
    oomph_device_each(device, show, &visitor);
    oomph_unlock(device);
    return OOMPH_OK;
}

/* ---- The blocks in use */

static bool is_live(const oomph_block_t *block)
{
    return !block->buffer &&
           (block->state == OOMPH_BLOCK_USED || block->state == OOMPH_BLOCK_DEFERRED);
}

static void count(const oomph_block_t *block, void *context)
{
    ((oomph_block_list_t *)context)->count += is_live(block);
}

static void enlist(const oomph_block_t *block, void *context)
{
    oomph_block_list_t *blocks = context;

    if (!is_live(block))
        return;
    size_t i = blocks->count++;
    blocks->addrs[i] = block->addr;
    blocks->bytes[i] = block->bytes;
    blocks->sites[i] = block->site;
    blocks->marks[i] =
        (uint8_t)((block->tier == OOMPH_TIER_HOST ? OOMPH_MARK_HOST : 0) |
                  (oomph_block_pool(block)->group != NULL ? OOMPH_MARK_POOL : 0) |
                  (block->state == OOMPH_BLOCK_DEFERRED ? OOMPH_MARK_WAITING : 0));
}

static bool make_columns(oomph_block_list_t *blocks, size_t capacity)
{
    const size_t row = sizeof *blocks->addrs + sizeof *blocks->bytes +
                       sizeof *blocks->sites + sizeof *blocks->marks;
    char *memory = malloc(oomph_max(capacity, 1) * row);

    if (memory == NULL)
        return false;
    blocks->addrs = (oomph_addr_t *)(void *)memory;
    blocks->bytes = blocks->addrs + capacity;
    blocks->sites = (oomph_site_t *)(void *)(blocks->bytes + capacity);
    blocks->marks = (uint8_t *)(blocks->sites + capacity);
    return true;
}

oomph_status_t oomph_list_blocks(int ordinal, oomph_block_list_t *blocks)
{
    oomph_device_t *device = oomph_enter_open(ordinal);
    oomph_block_list_t taken = {0};

    if (device != NULL)
        oomph_device_each(device, count, &taken);
    bool made = make_columns(&taken, taken.count);
    taken.count = 0;
    if (made && device != NULL)
        oomph_device_each(device, enlist, &taken);
    if (device != NULL)
        oomph_unlock(device);
    if (!made)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory to list the blocks");
    *blocks = taken;
    return OOMPH_OK;
}

/* ---- Call sites */

oomph_status_t oomph_live_sites(int ordinal, bool at_peak, oomph_site_bytes_t *rows,
                                size_t capacity, size_t *count)
{
    oomph_device_t *device = oomph_enter_open(ordinal);

    *count = 0;
    if (device == NULL)
        return OOMPH_OK;
    *count = oomph_site_counters_report(&device->sites, at_peak, rows, capacity);
    oomph_unlock(device);
    return OOMPH_OK;
}
