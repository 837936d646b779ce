/* arena.c - the address space of a layout, and the pages that move into it.
 *
 * When a period has been packed, one segment is reserved for its layout, and the pool's
 * free pages are mapped there from its start, all in one go: moved one by one, as
 * blocks need them, each would cost a miss in the middle of a step. What is still in
 * use stays where it is, and its pages follow on such misses. A rebuild costs one wait
 * for the oldest epoch and one map for each page; there is one for each period packed.
 */
#include "core/device/arena.h"
#include "core/device/sync.h"
#include "core/heap/heap.h"

// Whether there are pages for the arena beside those that blocks outside of it keep.
static bool layout_fits(oomph_pool_t *pool)
{
    oomph_device_t *device = pool->device;
    oomph_pages_t *pages = &device->pages;
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE};
    oomph_survey_t survey = oomph_steal_survey(device, &reach);
    size_t movable =
        survey.now + survey.later + pool->layout.carried_bytes / pages->page_bytes;
    size_t needed =
        oomph_round_up(pool->layout.bytes, pages->page_bytes) / pages->page_bytes;
    size_t missing = needed - oomph_min(needed, movable);

    return oomph_pages_available(pages, OOMPH_TIER_DEVICE, missing,
                                 OOMPH_RESERVE_WHOLE) == missing;
}

// Moves the pool's free pages into the arena in one go, once the work that used them
// has finished; what is missing then comes when a block needs it.
static void move_in(oomph_pool_t *pool, oomph_segment_t *arena)
{
    oomph_device_t *device = pool->device;
    size_t count = oomph_round_up(pool->layout.bytes, device->pages.page_bytes) >>
                   arena->page_shift;
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE, .heap = &pool->heap};

    oomph_note_pressure(device);
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

void oomph_arena_empty(oomph_pool_t *pool)
{
    while (pool->arena.segments != NULL)
        oomph_heap_move(pool->arena.segments, &pool->heap);
}

void oomph_arena_rebuild(oomph_pool_t *pool)
{
    oomph_device_t *device = pool->device;
    oomph_segment_t *arena;

    oomph_arena_empty(pool);
    pool->conflicts = 0;
    if (pool->layout.record.found_period == 0 || !oomph_layout_pack(&pool->layout))
        return;
    if (!layout_fits(pool) ||
        oomph_segment_reserve(&pool->arena, &device->pages, pool->layout.bytes,
                              &arena) != OOMPH_OK) {
        oomph_layout_refuse(&pool->layout);
        return;
    }
    pool->users++;
    move_in(pool, arena);
    pool->users--;
}
