/* move.c - moving blocks in use between device and host: room for them, and the wait
 * for the device.
 *
 * - The device is waited for once, without the lock. What may move (batch.c) is looked
 *   at again afterwards. From then on until the pages are exchanged the lock is held.
 * - What others queue after the wait would come in between: the caller knows that
 *   nobody does.
 */
#include "core/alloc/free.h"
#include "core/alloc/host.h"
#include "core/control/batch.h"
#include "core/device/lookup.h"
#include "core/device/steal.h"
#include "core/memory/owner.h"

#include <stdlib.h>

/* ---- Watchers */

// Tells what is about to be unmapped, without the lock.
static void announce(oomph_batch_t *batch)
{
    oomph_device_t *device = batch->device;
    const oomph_hooks_t *hooks = &oomph_process.hooks;

    if (hooks->unmapping == NULL || !atomic_load(&oomph_process.watched))
        return;
    batch->announced_count = batch->run_count;
    for (size_t i = 0; i < batch->run_count; i++) {
        const oomph_swap_run_t *run = &batch->runs[i];
        const oomph_pool_t *pool = run->segment->heap->owner;
        batch->announced[i] = (oomph_announced_t){
            oomph_segment_addr(run->segment, run->first),
            run->count * device->pages.page_bytes, pool->stream->handle};
    }
    oomph_unlock(device);
    for (size_t i = 0; i < batch->announced_count; i++)
        hooks->unmapping(device->ordinal, batch->announced[i].addr,
                         batch->announced[i].bytes, batch->announced[i].stream);
    oomph_enter(device);
}

// Tells of what was announced and is mapped, again or still.
static void report_mapped(const oomph_batch_t *batch)
{
    oomph_device_t *device = batch->device;

    for (size_t i = 0; i < batch->announced_count; i++) {
        const oomph_announced_t *announced = &batch->announced[i];
        const oomph_segment_t *segment = oomph_device_segment(device, announced->addr);
        if (segment != NULL &&
            segment->entries[oomph_segment_page(segment, announced->addr)].handle != 0)
            oomph_notices_add(&device->pages.notices,
                              (oomph_notice_t){.kind = OOMPH_NOTICE_MAPPED,
                                               .device = device->ordinal,
                                               .addr = announced->addr,
                                               .bytes = announced->bytes});
    }
}

/* ---- Room */

static oomph_status_t check_host_pages(oomph_device_t *device)
{
    oomph_host_kind_t kind = oomph_device_host_kind(device);

    if (kind == OOMPH_HOST_NUMA || kind == OOMPH_HOST_PLAIN)
        return OOMPH_OK;
    return oomph_fail(OOMPH_ERR_STATE,
                      "no block can move to the host here: moving needs host pages "
                      "that can be mapped, and this machine has: %s",
                      oomph_host_kind_name(kind));
}

// Makes as many host pages as are missing beside those that are free once the device
// has been waited for: they serve first, as making some is slower, and is more memory.
// Gives up the lock. If it fails, fewer blocks move.
static void make_missing_host_pages(oomph_device_t *device, size_t want)
{
    oomph_pages_t *pages = &device->pages;
    const size_t *spare = &pages->tiers[OOMPH_TIER_HOST].spare_count;
    oomph_reach_t reach = {.tier = OOMPH_TIER_HOST};
    oomph_survey_t idle = oomph_steal_survey(device, &reach);

    want -= oomph_min(want, idle.now + idle.later);
    if (*spare < want)
        oomph_ahead_take(&device->ahead, pages, want - *spare);
    if (oomph_pages_available(pages, OOMPH_TIER_HOST, want, OOMPH_RESERVE_WHOLE) < want)
        oomph_ahead_recall(&device->ahead, pages);
    if (*spare < want)
        oomph_make_host_pages(device, want);
}

// How many of the pages wanted are at hand: on the host those that exist, as what is
// free elsewhere comes before new ones.
static size_t at_hand(oomph_pages_t *pages, oomph_tier_t tier, size_t want)
{
    if (tier == OOMPH_TIER_HOST)
        return oomph_min(want, pages->tiers[tier].spare_count);
    return oomph_pages_available(pages, tier, want, OOMPH_RESERVE_WHOLE);
}

// Waits for the device, and gives in `room` how many of the pages wanted can be had,
// those included that are free elsewhere.
static oomph_status_t make_room(oomph_device_t *device, oomph_tier_t tier, size_t want,
                                size_t *room)
{
    oomph_pages_t *pages = &device->pages;
    oomph_reach_t reach = {.tier = tier};
    bool was_under_pressure = device->under_pressure;
    bool is_short = at_hand(pages, tier, want) < want;

    if (is_short)
        oomph_note_pressure(device); // so that after the drain free pages may go
    if (is_short && tier == OOMPH_TIER_HOST)
        make_missing_host_pages(device, want);
    oomph_status_t status = oomph_drain(device);
    if (status != OOMPH_OK)
        return status;
    device->stats.swap_drains++;
    oomph_collect(device);
    size_t have = at_hand(pages, tier, want);
    if (is_short && have < want)
        oomph_steal(device, &reach, want - have, NULL);
    *room = oomph_pages_available(pages, tier, want, OOMPH_RESERVE_WHOLE);
    device->under_pressure = was_under_pressure;
    return OOMPH_OK;
}

/* ---- Moving */

// Enters where the blocks chosen lie now; gives the bytes that moved. What went to the
// host as it is idle was not used there yet: at the end of the step it has been, if it
// was not worked on in copies (host_use.c).
static size_t account(const oomph_batch_t *batch)
{
    oomph_stats_t *stats = &batch->device->stats;
    bool to_host = batch->tier == OOMPH_TIER_HOST;
    bool is_unused = to_host && !batch->limits.wished;
    size_t moved_bytes = 0;

    for (size_t i = 0; i < batch->count; i++) {
        oomph_block_t *block = batch->blocks[i];
        if (block == NULL || !block->moving || block->tier != batch->tier)
            continue;
        size_t now = oomph_block_host_bytes(block), before = batch->host_bytes[i];
        if (now == before)
            continue;
        block->moving = false; // it may be named twice
        batch->moves[i].outcome = OOMPH_OUTCOME_THERE;
        block->survived = is_unused;
        block->copied = false;
        moved_bytes += to_host ? now - before : before - now;
    }
    int64_t to_host_bytes = to_host ? (int64_t)moved_bytes : -(int64_t)moved_bytes;
    oomph_counters_t *counters = &batch->device->counters;
    oomph_tier_usage_move(&batch->device->allocated_usage, &counters->allocated_bytes,
                          to_host_bytes);
    oomph_tier_usage_move(&batch->device->active_usage, &counters->active_bytes,
                          to_host_bytes);
    oomph_level_up(&batch->device->host_need.live, to_host_bytes);
    if (to_host && !is_unused)
        stats->host_used_bytes += to_host_bytes;
    *(to_host ? &stats->evicted_bytes : &stats->promoted_bytes) += (int64_t)moved_bytes;
    return moved_bytes;
}

// What its user moves to the host stays there.
static void note_wishes(const oomph_batch_t *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->moves[i].outcome == OOMPH_OUTCOME_THERE)
            batch->blocks[i]->evicted = batch->tier == OOMPH_TIER_HOST;
}

static oomph_status_t move_chosen(oomph_batch_t *batch, size_t most_pages,
                                  size_t *moved)
{
    oomph_device_t *device = batch->device;
    int64_t start = oomph_now_ns();
    oomph_status_t status = OOMPH_OK;
    size_t room = 0;

    if (batch->tier == OOMPH_TIER_HOST)
        status = check_host_pages(device);
    if (status == OOMPH_OK) {
        size_t want = batch->page_count;
        announce(batch);
        status = make_room(device, batch->tier, want, &room);
    }
    if (status == OOMPH_OK) {
        oomph_batch_choose(batch, oomph_min(room, most_pages));
        if (batch->run_count > 0)
            status =
                oomph_swap(&device->pages, batch->runs, batch->run_count, batch->tier);
        *moved = account(batch);
        oomph_batch_forget(batch);
    }
    report_mapped(batch);
    int64_t ns = oomph_now_ns() - start;
    device->stats.swap_ns += ns;
    device->stats.driver_ns += ns;
    return status;
}

static oomph_status_t move_batch(oomph_batch_t *batch, size_t *moved_bytes)
{
    size_t most_pages = batch->limits.most_bytes / batch->device->pages.page_bytes;
    oomph_status_t status = OOMPH_OK;
    size_t moved = 0;

    oomph_batch_choose(batch, most_pages);
    oomph_batch_forget(batch);
    if (batch->run_count > 0)
        status = move_chosen(batch, most_pages, &moved);
    if (status != OOMPH_OK)
        return status;
    if (batch->limits.wished || batch->tier == OOMPH_TIER_DEVICE)
        note_wishes(batch);
    *moved_bytes = moved;
    return OOMPH_OK;
}

oomph_status_t oomph_move_blocks(oomph_device_t *device, oomph_tier_t tier,
                                 oomph_move_t *moves, size_t count,
                                 oomph_move_limits_t limits, size_t *moved_bytes)
{
    oomph_batch_t batch = {.device = device,
                           .tier = tier,
                           .limits = limits,
                           .moves = moves,
                           .count = count,
                           .blocks = calloc(count, sizeof(oomph_block_t *)),
                           .host_bytes = calloc(count, sizeof *batch.host_bytes),
                           .runs = calloc(count, sizeof *batch.runs),
                           .announced = calloc(count, sizeof *batch.announced)};
    oomph_status_t status;

    if (count > 0 && (batch.blocks == NULL || batch.host_bytes == NULL ||
                      batch.runs == NULL || batch.announced == NULL))
        status = oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory to move blocks");
    else
        status = move_batch(&batch, moved_bytes);
    free(batch.blocks);
    free(batch.host_bytes);
    free(batch.runs);
    free(batch.announced);
    return status;
}

static oomph_status_t enter_and_move(int ordinal, oomph_tier_t tier,
                                     oomph_move_t *moves, size_t count,
                                     oomph_move_limits_t limits, size_t *moved_bytes)
{
    oomph_device_t *device = oomph_enter_open(ordinal);

    if (device == NULL)
        return oomph_not_open(ordinal);
    oomph_status_t status =
        oomph_move_blocks(device, tier, moves, count, limits, moved_bytes);
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_move(int ordinal, oomph_tier_t tier, oomph_move_t *moves,
                          size_t count, size_t *moved_bytes)
{
    oomph_move_limits_t limits = {.most_bytes = SIZE_MAX, .wished = true};

    return enter_and_move(ordinal, tier, moves, count, limits, moved_bytes);
}

oomph_status_t oomph_move_idle(int ordinal, oomph_move_t *moves, size_t count,
                               size_t *moved_bytes)
{
    oomph_move_limits_t limits = {.most_bytes = SIZE_MAX, .idle_only = true};

    return enter_and_move(ordinal, OOMPH_TIER_HOST, moves, count, limits, moved_bytes);
}

/* ---- What is known of blocks */

// Takes the lock and finds the block in use that contains the address; NULL, without
// the lock and with the reason in `status`, if there is none.
static oomph_block_t *lock_block(oomph_addr_t addr, oomph_device_t **device,
                                 oomph_status_t *status)
{
    *status = OOMPH_OK;
    *device = oomph_enter_open(oomph_owner(addr));
    if (*device == NULL) {
        *status = oomph_not_ours(addr);
        return NULL;
    }
    oomph_block_t *block = oomph_block_at(*device, addr);
    if (block == NULL) {
        oomph_unlock(*device);
        *status = oomph_fail(OOMPH_ERR_INVALID, "0x%llx does not lie in a block in use",
                             (unsigned long long)addr);
    }
    return block;
}

oomph_status_t oomph_pin(oomph_addr_t addr, bool on)
{
    oomph_status_t status;
    oomph_device_t *device;
    oomph_block_t *block = lock_block(addr, &device, &status);

    if (block != NULL) {
        block->pinned = on;
        oomph_unlock(device);
    }
    return status;
}

oomph_status_t oomph_mark_copied(oomph_addr_t addr)
{
    oomph_status_t status;
    oomph_device_t *device;
    oomph_block_t *block = lock_block(addr, &device, &status);

    if (block != NULL) {
        block->copied = true;
        oomph_unlock(device);
    }
    return status;
}

static oomph_status_t set_idle(oomph_addr_t addr, bool is_idle)
{
    oomph_status_t status;
    oomph_device_t *device;
    oomph_block_t *block = lock_block(addr, &device, &status);

    if (block != NULL) {
        block->idle_between_steps = is_idle;
        oomph_unlock(device);
    }
    return status;
}

oomph_status_t oomph_mark_idle(oomph_addr_t addr)
{
    return set_idle(addr, true);
}

oomph_status_t oomph_unmark_idle(oomph_addr_t addr)
{
    return set_idle(addr, false);
}
