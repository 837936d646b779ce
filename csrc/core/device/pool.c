/* pool.c - groups and pools of a device, and the address space that they take.
 *
 * The default pools of a stream hang at the stream, so that they are found at once;
 * those of graphs and MemPools are few, and found by a walk over the list of pools. A
 * pool of large blocks reserves addresses for the whole card and a quarter more at
 * once: addresses cost nothing, and with one segment any two free neighbours can merge.
 * What nobody will come back to is looked for when a step ends.
 */
#include "core/device/pool.h"
#include "core/device/arena.h"
#include "core/device/guard.h"
#include "core/heap/heap.h"

#include <stdlib.h>

/* ---- Groups and pools */

oomph_group_t *oomph_group_find(const oomph_device_t *device, oomph_pool_id_t id)
{
    oomph_group_t *group = device->groups;

    while (group != NULL && !oomph_same_pool(group->id, id))
        group = group->next;
    return group;
}

oomph_status_t oomph_group_get(oomph_device_t *device, oomph_pool_id_t id,
                               oomph_group_t **group)
{
    *group = oomph_group_find(device, id);
    if (*group != NULL)
        return OOMPH_OK;
    oomph_group_t *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for a pool");
    fresh->id = id;
    fresh->next = device->groups;
    device->groups = fresh;
    *group = fresh;
    return OOMPH_OK;
}

static void pool_destroy(oomph_pool_t *pool)
{
    oomph_heap_destroy(&pool->heap);
    if (!pool->small)
        oomph_heap_destroy(&pool->arena);
    oomph_layout_destroy(&pool->layout);
    pool->stream->users--;
    free(pool);
}

static oomph_status_t pool_create(oomph_device_t *device, oomph_stream_state_t *stream,
                                  oomph_group_t *group, bool small, oomph_pool_t **out)
{
    oomph_pool_t *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for a pool");
    oomph_status_t status = oomph_heap_init(&pool->heap, &device->slab, small, pool);
    if (status == OOMPH_OK && !small)
        status = oomph_heap_init(&pool->arena, &device->slab, small, pool);
    if (status != OOMPH_OK) {
        free(pool->heap.bins);
        free(pool);
        return status;
    }
    pool->device = device;
    pool->stream = stream;
    stream->users++;
    pool->group = group;
    pool->small = small;
    if (group != NULL) {
        pool->heap.whole = (group->flags & OOMPH_POOL_NO_SPLIT) != 0;
        pool->heap.mapped_bytes = &group->mapped_bytes;
    }
    pool->next = device->pools;
    device->pools = pool;
    *out = pool;
    return OOMPH_OK;
}

oomph_status_t oomph_pool_find(oomph_device_t *device, const oomph_request_t *request,
                               size_t bytes, oomph_pool_t **pool)
{
    bool small = bytes <= OOMPH_SMALL_MAX;
    oomph_stream_state_t *stream;
    oomph_group_t *group = NULL;

    oomph_status_t status =
        oomph_stream_get(&device->streams, device->ordinal, request->stream,
                         request->stream_lives, &stream);
    if (status != OOMPH_OK)
        return status;
    if (oomph_is_default_pool(request->pool)) {
        *pool = stream->pools[small];
        if (*pool == NULL) {
            if (!stream->lives)
                oomph_pools_prune(device); // what such streams before it have left
            status = pool_create(device, stream, NULL, small, pool);
            stream->pools[small] = *pool;
        }
        return status;
    }
    status = oomph_group_get(device, request->pool, &group);
    if (status != OOMPH_OK)
        return status;
    for (*pool = device->pools; *pool != NULL; *pool = (*pool)->next)
        if ((*pool)->group == group && (*pool)->stream == stream &&
            (*pool)->small == small)
            return OOMPH_OK;
    return pool_create(device, stream, group, small, pool);
}

/* ---- Address space */

oomph_status_t oomph_pool_extend(oomph_pool_t *pool, size_t bytes)
{
    oomph_device_t *device = pool->device;
    size_t generous =
        pool->small ? OOMPH_CHUNK_BYTES : device->total_bytes + device->total_bytes / 4;
    oomph_segment_t *segment;

    if (oomph_guards(OOMPH_GUARD_UNMAP) && pool->group == NULL)
        return oomph_guard_extend(pool, bytes, oomph_max(generous, bytes));
    // Where address space is short, what is needed must do.
    oomph_status_t status = oomph_segment_reserve(&pool->heap, &device->pages,
                                                  oomph_max(generous, bytes), &segment);
    if (status == OOMPH_ERR_NO_MEMORY && generous > bytes)
        status = oomph_segment_reserve(&pool->heap, &device->pages, bytes, &segment);
    return status;
}

static bool is_bare(const oomph_segment_t *segment)
{
    return segment->kind == OOMPH_SEGMENT_VIRTUAL && segment->mapped_count == 0 &&
           segment->first->bytes == segment->bytes && !segment->first->quarantined;
}

static void drop_bare_segments(oomph_pool_t *pool, bool all)
{
    for (oomph_segment_t *s = pool->heap.segments, *next; s != NULL; s = next) {
        next = s->next;
        bool only = pool->heap.segments->next == NULL;
        if (oomph_guards(OOMPH_GUARD_UNMAP) && oomph_guard_keep(pool->device, s, false))
            continue;
        if (is_bare(s) && (all || !only))
            oomph_segment_drop(s, &pool->device->pages); // if it fails, next time
    }
}

static bool has_pool(const oomph_device_t *device, const oomph_group_t *group)
{
    const oomph_pool_t *pool = device->pools;

    while (pool != NULL && pool->group != group)
        pool = pool->next;
    return pool != NULL;
}

// Whether nobody will come back to it: what a graph or MemPool left, or a stream that
// may be gone.
static bool is_left(const oomph_pool_t *pool)
{
    if (pool->users > 0)
        return false;
    return pool->group != NULL
               ? pool->group->use_count == 0
               : oomph_stream_is_idle(&pool->device->streams, pool->stream);
}

void oomph_pools_prune(oomph_device_t *device)
{
    for (oomph_pool_t **link = &device->pools; *link != NULL;) {
        oomph_pool_t *pool = *link;
        bool left = is_left(pool);
        if (left && pool->layout.places != NULL)
            oomph_layout_drop(&pool->layout);
        if (left)
            oomph_arena_empty(pool);
        drop_bare_segments(pool, left);
        if (left && pool->heap.segments == NULL) {
            *link = pool->next;
            if (pool->group == NULL)
                pool->stream->pools[pool->small] = NULL;
            pool_destroy(pool);
        } else {
            link = &pool->next;
        }
    }
    for (oomph_group_t **link = &device->groups; *link != NULL;) {
        oomph_group_t *group = *link;
        if (group->use_count > 0 || has_pool(device, group)) {
            link = &group->next;
            continue;
        }
        *link = group->next;
        free(group);
    }
    oomph_streams_prune(&device->streams);
}
