/* oom.c - who held the memory when it was short, kept until somebody explains it. */
#include "core/alloc/free.h"

#include <stdlib.h>

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
