/* shortage.c - who held the memory when it was short, kept until somebody explains it.
 */
#include "core/alloc/free.h"
#include "core/device/lookup.h"

#include <stdlib.h>
#include <string.h>

/* ---- A census */

static bool is_live(const oomph_block_t *block)
{
    return !block->buffer &&
           (block->state == OOMPH_BLOCK_USED || block->state == OOMPH_BLOCK_DEFERRED);
}

static void count(const oomph_block_t *block, void *census)
{
    ((oomph_census_t *)census)->count += is_live(block);
}

static void enlist(const oomph_block_t *block, void *context)
{
    oomph_census_t *census = context;

    if (!is_live(block))
        return;
    size_t i = census->count++;
    census->addrs[i] = block->addr;
    census->bytes[i] = block->bytes;
    census->sites[i] = block->site;
    census->marks[i] =
        (uint8_t)((block->tier == OOMPH_TIER_HOST ? OOMPH_MARK_HOST : 0) |
                  (oomph_block_pool(block)->group != NULL ? OOMPH_MARK_POOL : 0) |
                  (block->state == OOMPH_BLOCK_DEFERRED ? OOMPH_MARK_WAITING : 0));
}

static bool make_columns(oomph_census_t *census, size_t room)
{
    const size_t row = sizeof *census->addrs + sizeof *census->bytes +
                       sizeof *census->sites + sizeof *census->marks;
    char *memory = malloc(oomph_max(room, 1) * row);

    if (memory == NULL)
        return false;
    census->addrs = (oomph_addr_t *)(void *)memory;
    census->bytes = census->addrs + room;
    census->sites = (oomph_site_t *)(void *)(census->bytes + room);
    census->marks = (uint8_t *)(census->sites + room);
    return true;
}

oomph_status_t oomph_take_census(int ordinal, oomph_census_t *census)
{
    oomph_device_t *device = oomph_device_peek(ordinal);
    oomph_census_t taken = {0};

    if (device != NULL)
        oomph_enter(device);
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
    *census = taken;
    return OOMPH_OK;
}

/* ---- The last shortage */

static struct {
    oomph_lock_t lock;
    bool any;
    oomph_shortage_t last;
} kept;

// Of what the source of a pool has no more, no census of the device tells anything.
static bool is_of_source(const oomph_request_t *request)
{
    oomph_device_t *device = oomph_device_peek(request->device);

    if (device == NULL)
        return false;
    oomph_enter(device);
    const oomph_group_t *group = oomph_group_find(device, request->pool);
    bool found = group != NULL && group->has_source;
    oomph_unlock(device);
    return found;
}

void oomph_keep_shortage(const oomph_shortage_t *shortage)
{
    size_t (*modules)(uint64_t *, size_t) = oomph_process.hooks.modules;
    oomph_census_t census = {0};

    if (is_of_source(&shortage->request))
        return;
    oomph_take_census(shortage->request.device, &census);
    oomph_lock_take(&kept.lock);
    void *old = kept.any ? kept.last.census.addrs : NULL;
    kept.last = *shortage;
    kept.last.census = census;
    kept.last.module_count =
        modules != NULL ? modules(kept.last.modules, OOMPH_MODULES_MAX) : 0;
    kept.any = true;
    oomph_lock_give(&kept.lock);
    free(old);
}

bool oomph_take_shortage(oomph_shortage_t *shortage)
{
    oomph_lock_take(&kept.lock);
    bool any = kept.any;
    if (any)
        *shortage = kept.last;
    kept.any = false;
    oomph_lock_give(&kept.lock);
    return any;
}
