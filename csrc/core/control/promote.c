/* promote.c - blocks that fell back to the host return to the device when a step ends.
 *
 * - Only a block that is marked as idle between steps (oomph_mark_idle): any other may
 *   be in use by a thread of its own, such as one that loads data.
 * - Only one that outlived a whole step there; the oldest first, then the largest.
 * - Only what fits beside what the step had on the device at its peak, whatever is free
 *   at its end, and only after a step without a rescue. What graphs hold is no room,
 *   nor is what captures need, as long as they go on.
 * - Where a rescue follows soon, the promotion was in vain: there is none again until
 *   memory is no longer short.
 * - What its user evicted stays. Nothing returns where several threads end steps: then
 *   the end of one's step says nothing about what the others have under way.
 *
 * It costs a walk over the large blocks of the default pools, where any block lies on
 * the host; and where some return, a sort of these, one wait for the device, and a copy
 * over the link. That saves what kernels would read over it in each later step.
 */
#include "core/control/promote.h"
#include "core/alloc/demand.h"
#include "core/alloc/free.h"
#include "core/control/move.h"

#include <stdlib.h>

enum {
    OLD = 2,             // ends of steps seen: a whole step lies between them
    SLACK_DIVISOR = 200, // 1/200 of the device stays free, as pages are not all full
    VAIN_STEPS = 4,      // in which a rescue shows that a promotion was in vain
};

// The blocks that have outlived a whole step on host, and may return.
typedef struct survivors {
    oomph_block_t **blocks;
    size_t count, capacity;
} survivors_t;

static bool add(survivors_t *survivors, oomph_block_t *block)
{
    if (survivors->count == survivors->capacity) {
        size_t capacity = survivors->capacity == 0 ? 64 : survivors->capacity * 2;
        oomph_block_t **blocks =
            realloc(survivors->blocks, capacity * sizeof(oomph_block_t *));
        if (blocks == NULL)
            return false;
        survivors->blocks = blocks;
        survivors->capacity = capacity;
    }
    survivors->blocks[survivors->count++] = block;
    return true;
}

// Without host memory for the list, some have to wait for another step.
static void look_in(const oomph_heap_t *heap, survivors_t *survivors)
{
    for (const oomph_segment_t *s = heap->segments; s != NULL; s = s->next)
        for (oomph_block_t *b = s->first; b != NULL; b = b->next) {
            if (b->state != OOMPH_BLOCK_USED || b->tier != OOMPH_TIER_HOST || b->buffer)
                continue;
            if (b->idle_between_steps && b->survived >= OLD && !b->evicted &&
                !add(survivors, b))
                return;
        }
}

static void find_survivors(const oomph_device_t *device, survivors_t *survivors)
{
    for (const oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next) {
        if (pool->small || pool->group != NULL)
            continue;
        look_in(&pool->heap, survivors);
        look_in(&pool->arena, survivors);
    }
}

static int by_age_and_size(const void *left, const void *right)
{
    const oomph_block_t *a = *(oomph_block_t *const *)left;
    const oomph_block_t *b = *(oomph_block_t *const *)right;

    if (a->survived != b->survived)
        return a->survived > b->survived ? -1 : 1;
    return (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

// Device bytes that no step has in use at its peak, as long as it is like the last.
static size_t room_at_peak(oomph_device_t *device, int64_t device_peak)
{
    size_t most = oomph_device_room(device);
    size_t taken = oomph_demand_kept(device, device_peak) + most / SLACK_DIVISOR;

    return most - oomph_min(taken, most);
}

static void promote(oomph_device_t *device, const survivors_t *survivors, size_t room)
{
    oomph_move_t *moves = calloc(survivors->count, sizeof *moves);
    oomph_move_limits_t limits = {.most_bytes = room, .idle_only = true};
    size_t moved_bytes = 0;

    if (moves == NULL)
        return; // another step will do
    for (size_t i = 0; i < survivors->count; i++)
        moves[i].addr = survivors->blocks[i]->addr;
    oomph_status_t status = oomph_move_blocks(device, OOMPH_TIER_DEVICE, moves,
                                              survivors->count, limits, &moved_bytes);
    free(moves);
    // All is as before if it fails, but slower than it could be: that is counted.
    if (status == OOMPH_ERR_DRIVER) {
        device->stats.swap_failures++;
        device->promotes_not = true;
    }
    if (moved_bytes == 0)
        return;
    device->promoted_step = device->stats.step_count;
    if (!device->under_pressure) // else they go when memory is no longer short
        oomph_pages_trim(&device->pages, OOMPH_TIER_HOST, 0);
}

void oomph_promote_survivors(oomph_device_t *device, int64_t device_peak)
{
    const oomph_stats_t *stats = &device->stats;
    survivors_t survivors = {0};

    if (stats->step_count == 1)
        device->stepper = pthread_self();
    else if (!pthread_equal(device->stepper, pthread_self()))
        device->has_steppers = true;
    if (stats->step_rescues > 0 && device->promoted_step > 0 &&
        stats->step_count - device->promoted_step <= VAIN_STEPS)
        device->promotes_not = true;
    else if (!device->under_pressure)
        device->promotes_not = false;
    if (device->allocated_usage.host == 0 || device->has_steppers ||
        !oomph_process.config.promote)
        return;
    find_survivors(device, &survivors);
    size_t room = room_at_peak(device, device_peak);
    if (survivors.count > 0 && room > 0 && stats->step_rescues == 0 &&
        !device->promotes_not) {
        qsort(survivors.blocks, survivors.count, sizeof(oomph_block_t *),
              by_age_and_size);
        promote(device, &survivors, room);
    }
    free(survivors.blocks);
}
