/* oom.c - who held the memory when it was short, kept until somebody explains it.
 */
#include "core/alloc/free.h"
#include "core/device/lookup.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- The last one */

static struct {
    oomph_lock_t lock;
    bool any;
    oomph_oom_t last;
} kept;

static bool is_of_source(const oomph_request_t *request)
{
    oomph_device_t *device = oomph_enter_open(request->device);

    if (device == NULL)
        return false;
    const oomph_group_t *group = oomph_group_find(device, request->pool);
    bool found = group != NULL && group->has_source;
    oomph_unlock(device);
    return found;
}

void oomph_keep_oom(const oomph_oom_t *oom)
{
    oomph_block_list_t blocks = {0};

    // Where a source has no more memory, or addresses were short, the device's blocks
    // explain nothing.
    if (oom->stats.oom_missing_bytes == 0 || is_of_source(&oom->request))
        return;
    oomph_list_blocks(oom->request.device, &blocks);
    oomph_lock_take(&kept.lock);
    void *old = kept.any ? kept.last.blocks.addrs : NULL;
    kept.last = *oom;
    kept.last.blocks = blocks;
    kept.any = true;
    oomph_lock_give(&kept.lock);
    free(old);
}

bool oomph_take_oom(oomph_oom_t *oom)
{
    oomph_lock_take(&kept.lock);
    bool any = kept.any;
    if (any)
        *oom = kept.last;
    kept.any = false;
    oomph_lock_give(&kept.lock);
    return any;
}
