/* pool.c - groups and pools of a device, and the address space that they take. */
#include "device.h"

#include <stdlib.h>

/* ---- Groups and pools */

oomph_group_t *oomph_group_find(const oomph_device_t *device, oomph_pool_id_t id)
{
    oomph_group_t *group = device->groups;

    while (group != NULL && !oomph_same_pool(group->id, id))
        group = group->next;
    return group;
}

static oomph_status_t group_get(oomph_device_t *device, oomph_pool_id_t id,
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
    oomph_plan_destroy(&pool->plan);
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
    pool->heap.whole = group != NULL && (group->flags & OOMPH_POOL_NO_SPLIT) != 0;
    pool->next = device->pools;
    device->pools = pool;
    *out = pool;
    return OOMPH_OK;
}

oomph_status_t oomph_pool_get(oomph_device_t *device, const oomph_request_t *request,
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
    if (oomph_same_pool(request->pool, (oomph_pool_id_t){0, 0})) {
        *pool = stream->pools[small];
        if (*pool == NULL) {
            if (!stream->lives)
                oomph_pools_prune(device); // what such streams before it have left
            status = pool_create(device, stream, NULL, small, pool);
            stream->pools[small] = *pool;
        }
        return status;
    }
    status = group_get(device, request->pool, &group);
    if (status != OOMPH_OK)
        return status;
    for (*pool = device->pools; *pool != NULL; *pool = (*pool)->next)
        if ((*pool)->group == group && (*pool)->stream == stream &&
            (*pool)->small == small)
            return OOMPH_OK;
    return pool_create(device, stream, group, small, pool);
}

bool oomph_pool_floats(const oomph_pool_t *pool)
{
    const oomph_group_t *group = pool->group;

    return group == NULL || group->use_count == 0 ||
           (group->flags & OOMPH_POOL_ON_OOM) != 0;
}

// The caller holds the lock.
static oomph_status_t retain(oomph_device_t *device, oomph_pool_id_t id,
                             bool is_mem_pool)
{
    oomph_group_t *group;

    oomph_status_t status = group_get(device, id, &group);
    if (status == OOMPH_OK)
        group->use_count++;
    if (status == OOMPH_OK && is_mem_pool)
        group->is_mem_pool = true;
    return status;
}

oomph_status_t oomph_pool_retain(int ordinal, oomph_pool_id_t id)
{
    oomph_device_t *device;

    oomph_status_t status = oomph_lock_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = retain(device, id, true);
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_pool_begin(int ordinal, oomph_pool_id_t id, oomph_stream_t stream,
                                bool stream_lives)
{
    oomph_device_t *device;
    oomph_stream_state_t *captures;
    oomph_request_t request = {
        .device = ordinal, .pool = id, .stream = stream, .stream_lives = stream_lives};

    oomph_status_t status = oomph_lock_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = retain(device, id, false);
    if (status == OOMPH_OK) {
        oomph_room_make(device, &request);
        status = oomph_stream_get(&device->streams, ordinal, stream, stream_lives,
                                  &captures);
        if (status != OOMPH_OK)
            oomph_group_find(device, id)->use_count--;
    }
    if (status == OOMPH_OK) {
        oomph_streams_catch_up(&device->streams); // no epoch is closed in a capture
        oomph_streams_begin(&device->streams, captures);
    }
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_pool_end(int ordinal, oomph_stream_t stream, bool stream_lives)
{
    oomph_device_t *device = oomph_device_peek(ordinal);
    oomph_stream_state_t *captured;

    if (device == NULL)
        return oomph_fail(OOMPH_ERR_STATE, "device %d is not open", ordinal);
    oomph_lock(device);
    oomph_streams_end(&device->streams);
    // Looks whether it captures still.
    oomph_status_t status =
        oomph_stream_get(&device->streams, ordinal, stream, stream_lives, &captured);
    oomph_unlock(device);
    return status;
}

// What a graph or a MemPool held may be in use by replays that run on any stream.
static void let_float(oomph_device_t *device, const oomph_group_t *group)
{
    for (oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next)
        if (pool->group == group)
            pool->floor = oomph_streams_stamp(&device->streams, 0);
}

oomph_status_t oomph_pool_release(int ordinal, oomph_pool_id_t id)
{
    oomph_device_t *device = oomph_device_peek(ordinal);
    oomph_status_t status = OOMPH_OK;

    if (device == NULL)
        return oomph_fail(OOMPH_ERR_STATE, "device %d is not open", ordinal);
    oomph_lock(device);
    oomph_group_t *group = oomph_group_find(device, id);
    if (group == NULL || group->use_count == 0)
        status = oomph_fail(OOMPH_ERR_INVALID, "the pool is not in use");
    else if (--group->use_count == 0)
        let_float(device, group);
    oomph_unlock(device);
    return status;
}

int oomph_pool_use_count(int ordinal, oomph_pool_id_t id)
{
    oomph_device_t *device = oomph_device_peek(ordinal);
    int count = 0;

    if (device == NULL)
        return 0;
    oomph_lock(device);
    const oomph_group_t *group = oomph_group_find(device, id);
    if (group != NULL)
        count = group->use_count;
    oomph_unlock(device);
    return count;
}

oomph_status_t oomph_pool_set_flag(int ordinal, oomph_pool_id_t id,
                                   oomph_pool_flag_t flag, bool on)
{
    oomph_device_t *device;
    oomph_group_t *group;

    oomph_status_t status = oomph_lock_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = group_get(device, id, &group);
    if (status == OOMPH_OK)
        group->flags = on ? group->flags | flag : group->flags & ~(unsigned)flag;
    for (oomph_pool_t *p = device->pools; p != NULL && status == OOMPH_OK; p = p->next)
        if (p->group == group)
            p->heap.whole = (group->flags & OOMPH_POOL_NO_SPLIT) != 0;
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_pool_set_source(int ordinal, oomph_pool_id_t id,
                                     const oomph_source_t *source)
{
    oomph_device_t *device;
    oomph_group_t *group;

    oomph_status_t status = oomph_lock_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = group_get(device, id, &group);
    if (status == OOMPH_OK) {
        group->source = *source;
        group->has_source = source->take != NULL;
    }
    oomph_unlock(device);
    return status;
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

// Whether there are pages for the arena beside those that blocks outside of it keep.
static bool plan_fits(oomph_pool_t *pool)
{
    oomph_device_t *device = pool->device;
    oomph_pages_t *pages = &device->pages;
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE};
    oomph_survey_t survey = oomph_steal_survey(device, &reach);
    size_t movable =
        survey.now + survey.later + pool->plan.carried_bytes / pages->page_bytes;
    size_t needed =
        oomph_round_up(pool->plan.bytes, pages->page_bytes) / pages->page_bytes;
    size_t missing = needed - oomph_min(needed, movable);

    return oomph_pages_available(pages, OOMPH_TIER_DEVICE, missing, false) == missing;
}

// Moves the pool's free pages into the arena at one go, once the work that used them
// has finished; what is missing then comes when a block needs it.
static void move_in(oomph_pool_t *pool, oomph_segment_t *arena)
{
    oomph_device_t *device = pool->device;
    size_t count =
        oomph_round_up(pool->plan.bytes, device->pages.page_bytes) >> arena->page_shift;
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE, .heap = &pool->heap};

    oomph_press(device);
    oomph_wait_for_pages(device);
    oomph_streams_catch_up(&device->streams);
    oomph_steal(device, &reach, count, pool->stream);
    // The lock was given up meanwhile: the arena may have gone, or be in use.
    if (pool->arena.segments != arena || arena->mapped_count > 0)
        return;
    count = oomph_min(count, device->pages.tiers[OOMPH_TIER_DEVICE].spare_count);
    if (count > 0)
        oomph_segment_map(arena, &device->pages, 0, count, OOMPH_TIER_DEVICE);
}

// The blocks there stay where they are.
static void empty_arena(oomph_pool_t *pool)
{
    while (pool->arena.segments != NULL)
        oomph_heap_move(pool->arena.segments, &pool->heap);
}

void oomph_pool_replan(oomph_pool_t *pool)
{
    oomph_device_t *device = pool->device;
    oomph_segment_t *arena;

    empty_arena(pool);
    pool->conflicts = 0;
    if (pool->plan.found_period == 0 || !oomph_plan_pack(&pool->plan))
        return;
    if (!plan_fits(pool) ||
        oomph_segment_reserve(&pool->arena, &device->pages, pool->plan.bytes, &arena) !=
            OOMPH_OK) {
        uint64_t hash = pool->plan.packed_hash;
        oomph_plan_drop(&pool->plan);
        pool->plan.packed_hash = hash; // not again for the same period
        return;
    }
    pool->claims++;
    move_in(pool, arena);
    pool->claims--;
}

static bool is_bare(const oomph_segment_t *segment)
{
    return segment->kind == OOMPH_SEGMENT_VIRTUAL && segment->mapped_count == 0 &&
           segment->first->bytes == segment->bytes;
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
    if (pool->claims > 0)
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
        if (left && pool->plan.places != NULL)
            oomph_plan_drop(&pool->plan);
        if (left)
            empty_arena(pool);
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
