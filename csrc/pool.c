#include "device.h"

#include <stdlib.h>

#define RESERVE_MIN ((size_t)256 << 20) // bytes left to libraries by `reserve: auto`
enum { RESERVE_SHARE = 50 };            // and at least a 50th of the card

oomph_process_t oomph_process = {
    .config = {.offload = OOMPH_OFFLOAD_ON_OOM,
               .reserve_bytes = OOMPH_AUTO,
               .plan = true,
               .promote = true},
};

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER; // settings, opening
static atomic_bool forked; // this is a child: CUDA does not work here

static void note_fork(void)
{
    atomic_store(&forked, true);
}

/* ---- Settings and start */

oomph_config_t oomph_config_default(void)
{
    return (oomph_config_t){.offload = OOMPH_OFFLOAD_ON_OOM,
                            .host_kind = OOMPH_HOST_AUTO,
                            .reserve_bytes = OOMPH_AUTO,
                            .plan = true,
                            .promote = true};
}

static void set_config(const oomph_config_t *config)
{
    oomph_config_t *ours = &oomph_process.config;

    *ours = *config;
    if ((ours->guard & OOMPH_GUARD_SYNC) != 0)
        ours->guard |= OOMPH_GUARD_UNMAP;
    if ((ours->guard & OOMPH_GUARD_UNMAP) != 0)
        ours->plan = false; // it uses addresses again
}

oomph_status_t oomph_configure(const oomph_config_t *config)
{
    oomph_status_t status = OOMPH_OK;

    if (config->device_limit_share < 0 || config->device_limit_share > 1)
        return oomph_fail(OOMPH_ERR_INVALID,
                          "device_limit as a share must be in (0, 1]");
    if ((config->page_bytes & (config->page_bytes - 1)) != 0)
        return oomph_fail(OOMPH_ERR_INVALID, "page must be a power of two");
    pthread_mutex_lock(&process_lock);
    if (oomph_process.started)
        status = oomph_fail(OOMPH_ERR_STATE, "oomph has started; settings are fixed");
    else
        set_config(config);
    pthread_mutex_unlock(&process_lock);
    return status;
}

void oomph_set_hooks(const oomph_hooks_t *hooks)
{
    oomph_hooks_t *ours = &oomph_process.hooks;

    pthread_mutex_lock(&process_lock);
    if (hooks->before_wait != NULL) {
        ours->before_wait = hooks->before_wait;
        ours->after_wait = hooks->after_wait;
    }
    if (hooks->free_memory != NULL)
        ours->free_memory = hooks->free_memory;
    if (hooks->unmapping != NULL)
        ours->unmapping = hooks->unmapping;
    if (hooks->notice != NULL)
        ours->notice = hooks->notice;
    if (hooks->rescued != NULL)
        ours->rescued = hooks->rescued;
    if (hooks->call_site != NULL)
        ours->call_site = hooks->call_site;
    pthread_mutex_unlock(&process_lock);
}

void oomph_watch(bool on)
{
    atomic_store(&oomph_process.watched, on);
}

// The caller holds the process lock.
static const oomph_driver_t *the_driver(void)
{
    if (oomph_process.driver == NULL)
        oomph_process.driver = oomph_driver_cuda();
    return oomph_process.driver;
}

oomph_status_t oomph_find_driver(void)
{
    pthread_mutex_lock(&process_lock);
    oomph_status_t status = the_driver()->find();
    pthread_mutex_unlock(&process_lock);
    return status;
}

oomph_status_t oomph_start(int *device_count)
{
    oomph_status_t status = OOMPH_OK;

    if (atomic_load(&forked))
        return oomph_fail(OOMPH_ERR_STATE, "CUDA cannot be used in a forked child");
    pthread_mutex_lock(&process_lock);
    if (!oomph_process.started)
        status = the_driver()->start(&oomph_process.device_count);
    if (status == OOMPH_OK && !oomph_process.started) {
        oomph_process.started = true;
        oomph_process.host.limit_bytes = oomph_process.config.host_limit_bytes;
        pthread_atfork(NULL, NULL, note_fork);
    }
    if (status == OOMPH_OK)
        *device_count = oomph_process.device_count;
    pthread_mutex_unlock(&process_lock);
    return status;
}

void oomph_stop(void)
{
    if (atomic_load(&forked))
        return;
    for (int i = 0; i < OOMPH_DEVICE_MAX; i++) {
        oomph_device_t *device = atomic_load(&oomph_process.devices[i]);
        if (device == NULL)
            continue;
        oomph_ahead_stop(&device->ahead);
        oomph_gate_stop(&device->gate);
    }
}

/* ---- Devices */

void oomph_device_limit(oomph_device_t *device)
{
    const oomph_config_t *config = &oomph_process.config;
    double total = (double)device->total_bytes;
    size_t limit = SIZE_MAX;

    if (config->device_limit_bytes != 0)
        limit = config->device_limit_bytes;
    if (config->device_limit_share > 0)
        limit = (size_t)(total * config->device_limit_share);
    if (device->fraction < 1)
        limit = oomph_min(limit, (size_t)(total * device->fraction));
    device->pages.limit_bytes = limit;
}

static oomph_status_t check_sizes(int ordinal, const oomph_device_info_t *info,
                                  size_t *page_bytes)
{
    const oomph_config_t *config = &oomph_process.config;

    *page_bytes = config->page_bytes == 0 ? info->page_bytes : config->page_bytes;
    if (*page_bytes % info->page_bytes != 0 || *page_bytes > OOMPH_CHUNK_BYTES)
        return oomph_fail(OOMPH_ERR_INVALID,
                          "page: %zu bytes is no multiple of the %zu bytes that device "
                          "%d maps at once, or more than 1 GiB",
                          *page_bytes, info->page_bytes, ordinal);
    if (config->device_limit_bytes > info->total_bytes)
        return oomph_fail(
            OOMPH_ERR_INVALID,
            "device_limit: %.2f GiB is more than the %.2f GiB of device %d; give less, "
            "or a share such as 0.9",
            (double)config->device_limit_bytes / (1 << 30),
            (double)info->total_bytes / (1 << 30), ordinal);
    return OOMPH_OK;
}

static size_t reserve_of(const oomph_device_info_t *info)
{
    if (oomph_process.config.reserve_bytes != OOMPH_AUTO)
        return (size_t)oomph_process.config.reserve_bytes;
    return oomph_max(RESERVE_MIN, info->total_bytes / RESERVE_SHARE);
}

static oomph_status_t open_device(int ordinal, oomph_device_t **out)
{
    oomph_device_info_t info;
    size_t page_bytes;

    oomph_status_t status = oomph_process.driver->open(ordinal, &info);
    if (status == OOMPH_OK)
        status = check_sizes(ordinal, &info, &page_bytes);
    if (status != OOMPH_OK)
        return status;
    oomph_device_t *device = calloc(1, sizeof *device);
    if (device == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for device %d", ordinal);
    pthread_mutex_init(&device->climbs_lock, NULL);
    pthread_cond_init(&device->climbed, NULL);
    device->ordinal = ordinal;
    device->total_bytes = info.total_bytes;
    device->shared = info.shared;
    device->fraction = 1;
    oomph_pages_init(&device->pages, oomph_process.driver, ordinal, page_bytes,
                     &oomph_process.host);
    device->pages.notices.wanted = &oomph_process.watched;
    device->pages.reserve_bytes = reserve_of(&info);
    oomph_device_limit(device);
    oomph_streams_init(&device->streams, oomph_process.driver, ordinal);
    oomph_gate_init(&device->gate, &device->streams);
    oomph_ahead_init(&device->ahead, &device->pages);
    *out = device;
    return OOMPH_OK;
}

oomph_host_kind_t oomph_device_host_kind(oomph_device_t *device)
{
    oomph_link_t link = {0};

    // What did not work may do so the next time.
    if (device->pages.host_kind != OOMPH_HOST_AUTO &&
        device->pages.host_kind != OOMPH_HOST_OFF)
        return device->pages.host_kind;
    oomph_spill_probe(&device->pages, oomph_process.config.host_kind, &link);
    device->stats.link_to_host_bytes_per_s = link.to_host;
    device->stats.link_to_device_bytes_per_s = link.to_device;
    return device->pages.host_kind;
}

oomph_device_t *oomph_device_peek(int ordinal)
{
    if (ordinal < 0 || ordinal >= OOMPH_DEVICE_MAX || atomic_load(&forked))
        return NULL;
    return atomic_load_explicit(&oomph_process.devices[ordinal], memory_order_acquire);
}

oomph_status_t oomph_not_ours(oomph_addr_t addr)
{
    if (atomic_load(&forked))
        return oomph_fail(OOMPH_ERR_STATE, "CUDA cannot be used in a forked child");
    return oomph_fail(OOMPH_ERR_INVALID, "0x%llx is no address of oomph's",
                      (unsigned long long)addr);
}

oomph_status_t oomph_device_get(int ordinal, oomph_device_t **device)
{
    oomph_status_t status = OOMPH_OK;
    int device_count = 0;

    *device = oomph_device_peek(ordinal);
    if (*device != NULL)
        return OOMPH_OK;
    status = oomph_start(&device_count);
    if (status != OOMPH_OK)
        return status;
    if (ordinal < 0 || ordinal >= device_count || ordinal >= OOMPH_DEVICE_MAX)
        return oomph_fail(OOMPH_ERR_INVALID, "there is no device %d; the driver has %d",
                          ordinal, device_count);
    pthread_mutex_lock(&process_lock);
    *device = atomic_load(&oomph_process.devices[ordinal]);
    if (*device == NULL) {
        status = open_device(ordinal, device);
        if (status == OOMPH_OK)
            atomic_store_explicit(&oomph_process.devices[ordinal], *device,
                                  memory_order_release);
    }
    pthread_mutex_unlock(&process_lock);
    return status;
}

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

    oomph_status_t status = oomph_stream_get(&device->streams, request->stream,
                                             request->stream_lives, &stream);
    if (status != OOMPH_OK)
        return status;
    if (oomph_same_pool(request->pool, (oomph_pool_id_t){0, 0})) {
        *pool = stream->pools[small];
        if (*pool == NULL) {
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
    return pool->group == NULL || pool->group->use_count == 0 ||
           (pool->group->flags & OOMPH_POOL_ON_OOM) != 0;
}

static oomph_status_t retain(int ordinal, oomph_pool_id_t id, int scopes)
{
    oomph_device_t *device;
    oomph_group_t *group;

    oomph_status_t status = oomph_device_get(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    oomph_lock(device);
    status = group_get(device, id, &group);
    if (status == OOMPH_OK) {
        group->use_count++;
        device->streams.scopes += scopes;
    }
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_pool_retain(int ordinal, oomph_pool_id_t id)
{
    return retain(ordinal, id, 0);
}

oomph_status_t oomph_pool_begin(int ordinal, oomph_pool_id_t id)
{
    return retain(ordinal, id, 1);
}

oomph_status_t oomph_pool_end(int ordinal)
{
    oomph_device_t *device = oomph_device_peek(ordinal);
    oomph_status_t status = OOMPH_OK;

    if (device == NULL)
        return oomph_fail(OOMPH_ERR_STATE, "device %d is not open", ordinal);
    oomph_lock(device);
    if (device->streams.scopes > 0)
        device->streams.scopes--;
    else
        status = oomph_fail(OOMPH_ERR_INVALID, "no pool is being allocated to");
    oomph_unlock(device);
    return status;
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
    else
        group->use_count--;
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

    oomph_status_t status = oomph_device_get(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    oomph_lock(device);
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

    oomph_status_t status = oomph_device_get(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    oomph_lock(device);
    status = group_get(device, id, &group);
    if (status == OOMPH_OK) {
        group->source = *source;
        group->has_source = true;
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
    oomph_wait_for(device, pool->stream);
    oomph_stream_poll(&device->streams, pool->stream);
    oomph_steal(device, &reach, count, pool->stream);
    // The lock was given up meanwhile: the arena may have gone, or be in use.
    if (pool->arena.segments != arena || arena->mapped_count > 0)
        return;
    count = oomph_min(count, device->pages.tiers[OOMPH_TIER_DEVICE].spare_count);
    if (count > 0)
        oomph_segment_map(arena, &device->pages, 0, count, OOMPH_TIER_DEVICE);
}

void oomph_pool_replan(oomph_pool_t *pool)
{
    oomph_device_t *device = pool->device;
    oomph_segment_t *arena;

    while (pool->arena.segments != NULL)
        oomph_heap_move(pool->arena.segments, &pool->heap);
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
    move_in(pool, arena);
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

void oomph_pools_prune(oomph_device_t *device)
{
    for (oomph_pool_t **link = &device->pools; *link != NULL;) {
        oomph_pool_t *pool = *link;
        bool unused = pool->group != NULL && pool->group->use_count == 0;
        drop_bare_segments(pool, unused);
        if (unused && pool->heap.segments == NULL) {
            *link = pool->next;
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
}
