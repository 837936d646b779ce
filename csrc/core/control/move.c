/* move.c - moving blocks in use between device and host: which may move, room for them,
 * and the wait for the device.
 *
 * - What moves is whole pages. A page that blocks in use share moves when all of them
 *   are to lie on the tier; what is FREE there goes along. A block moves with the pages
 *   that it has for itself; one that has none needs all those that it shares.
 * - Blocks are taken in the order given, as long as there is room.
 * - The device is waited for once, without the lock; what may be moved is looked at
 *   again afterwards. From then on until the pages are exchanged the lock is held.
 * - What others queue after the wait would come in between: the caller knows that
 *   nobody does.
 */
#include "core/control/move.h"
#include "core/alloc/free.h"
#include "core/alloc/host.h"
#include "core/device/lookup.h"
#include "core/device/steal.h"
#include "core/memory/owner.h"

#include <stdlib.h>

// Addresses that watchers were told to be unmapped.
typedef struct announced {
    oomph_addr_t addr;
    size_t bytes;
    oomph_stream_t stream;
} announced_t;

typedef struct batch {
    oomph_device_t *device;
    oomph_tier_t tier;
    oomph_move_limits_t limits;
    oomph_move_t *moves;
    size_t count;
    oomph_block_t **blocks; // of each move; NULL: it has none
    oomph_swap_run_t *runs; // of the pages chosen
    size_t run_count, page_count;
    announced_t *announced;
    size_t announced_count;
} batch_t;

const char *oomph_outcome_text(oomph_outcome_t outcome)
{
    static const char *const texts[OOMPH_OUTCOMES] = {
        "it lies where it was wanted",
        "it is no block in use of the device",
        "it is at most 1 MiB and shares its pages with other small blocks",
        "it shares its pages with blocks in use that do not move with it",
        "it is of a CUDA graph or a MemPool",
        "it is not made of pages that oomph maps",
        "other processes have its pages mapped",
        "it is pinned to the device",
        "there is not enough room for it",
    };

    return outcome >= 0 && outcome < OOMPH_OUTCOMES ? texts[outcome] : "unknown";
}

/* ---- Blocks */

static bool is_exported(const oomph_block_t *block)
{
    const oomph_segment_t *segment = block->segment;
    size_t last = oomph_segment_page(segment, oomph_block_end(block) - 1);

    for (size_t i = oomph_segment_page(segment, block->addr); i <= last; i++)
        if (oomph_segment_descriptor(segment, i) >= 0)
            return true;
    return false;
}

oomph_block_t *oomph_block_at(const oomph_device_t *device, oomph_addr_t addr)
{
    const oomph_segment_t *segment = oomph_device_segment(device, addr);
    if (segment == NULL)
        return NULL;

    oomph_block_t *block = oomph_segment_block(segment, addr);
    bool known = block->state == OOMPH_BLOCK_USED && !block->leaked && !block->buffer &&
                 block->use.requested_bytes > 0;
    return known ? block : NULL;
}

// Why the block cannot move; THERE if it can, or has already.
static bool may_move(const oomph_block_t *block, oomph_tier_t tier,
                     oomph_outcome_t *outcome)
{
    const oomph_pool_t *pool = oomph_block_pool(block);

    *outcome = OOMPH_OUTCOME_THERE;
    if (block->tier == tier)
        return false;
    if (pool->small)
        *outcome = OOMPH_OUTCOME_SMALL;
    else if (block->segment->kind != OOMPH_SEGMENT_VIRTUAL)
        *outcome = OOMPH_OUTCOME_ADOPTED;
    else if (pool->group != NULL)
        *outcome = OOMPH_OUTCOME_POOL;
    else if (is_exported(block))
        *outcome = OOMPH_OUTCOME_EXPORTED;
    else if (tier == OOMPH_TIER_HOST && block->pinned)
        *outcome = OOMPH_OUTCOME_PINNED;
    return *outcome == OOMPH_OUTCOME_THERE;
}

bool oomph_block_may_move(const oomph_block_t *block, oomph_tier_t tier)
{
    oomph_outcome_t outcome;

    return may_move(block, tier, &outcome);
}

/* ---- Pages */

// Whether all blocks in use that touch a page are to lie on the tier, or do already.
static bool all_on_tier(const batch_t *batch, const oomph_segment_t *segment,
                        size_t page)
{
    oomph_addr_t begin = oomph_segment_addr(segment, page);
    oomph_addr_t end = oomph_segment_addr(segment, page + 1);

    for (const oomph_block_t *b = oomph_page_block(segment, page);
         b != NULL && b->addr < end; b = b->next)
        if (b->state != OOMPH_BLOCK_FREE && oomph_block_end(b) > begin && !b->moving &&
            (b->state != OOMPH_BLOCK_USED || b->tier != batch->tier || b->leaked ||
             (batch->limits.idle_only && !b->idle_between_steps)))
            return false;
    return true;
}

// The pages that move for a block's sake: all, but for ends that others keep back, or
// move themselves. False if it has too few pages then to move at all.
static bool find_run(const batch_t *batch, const oomph_block_t *block,
                     oomph_swap_run_t *run)
{
    oomph_tier_t tier = batch->tier;
    oomph_segment_t *segment = block->segment;
    const oomph_page_entry_t *entries = segment->entries;
    size_t first = oomph_segment_page(segment, block->addr);
    size_t last = oomph_segment_page(segment, oomph_block_end(block) - 1);
    bool has_own = last - first >= 2;
    bool first_may = all_on_tier(batch, segment, first);
    bool last_may = all_on_tier(batch, segment, last);

    if (!has_own && !(first_may && last_may))
        return false;
    *run = (oomph_swap_run_t){.segment = segment, .first = first};
    if (has_own && entries[first + 1].moving)
        return true; // it was named before
    bool first_moves =
        first_may && !entries[first].moving && entries[first].tier != tier;
    bool last_moves = last_may && !entries[last].moving && entries[last].tier != tier;
    size_t end = last_moves ? last + 1 : last;
    run->first = first_moves ? first : first + 1;
    run->count = end > run->first ? end - run->first : 0;
    return true;
}

static void choose_run(batch_t *batch, const oomph_swap_run_t *run)
{
    for (size_t i = run->first; i < run->first + run->count; i++)
        run->segment->entries[i].moving = true;
    if (run->count > 0)
        batch->runs[batch->run_count++] = *run;
    batch->page_count += run->count;
}

static int by_address(const void *left, const void *right)
{
    const oomph_swap_run_t *a = left, *b = right;
    oomph_addr_t from = oomph_segment_addr(a->segment, a->first);
    oomph_addr_t to = oomph_segment_addr(b->segment, b->first);

    return (from > to) - (from < to);
}

// Makes one of runs that follow each other.
static void join_runs(batch_t *batch)
{
    oomph_swap_run_t *runs = batch->runs;
    size_t joined = 0;

    if (batch->run_count == 0)
        return;
    qsort(runs, batch->run_count, sizeof *runs, by_address);
    for (size_t i = 1; i < batch->run_count; i++) {
        oomph_swap_run_t *last = &runs[joined];
        if (runs[i].segment == last->segment &&
            runs[i].first == last->first + last->count)
            last->count += runs[i].count;
        else
            runs[++joined] = runs[i];
    }
    batch->run_count = joined + 1;
}

// Chooses what moves if there is room for `room` pages.
static void choose(batch_t *batch, size_t room)
{
    oomph_swap_run_t run;

    batch->run_count = batch->page_count = 0;
    for (size_t i = 0; i < batch->count; i++) {
        oomph_block_t *block = oomph_block_at(batch->device, batch->moves[i].addr);
        if (block != NULL && batch->limits.idle_only && !block->idle_between_steps)
            block = NULL; // another has come in the place of the idle one
        batch->blocks[i] = block;
        if (block == NULL)
            batch->moves[i].outcome = OOMPH_OUTCOME_UNKNOWN;
        else
            block->moving = may_move(block, batch->tier, &batch->moves[i].outcome);
    }
    for (size_t i = 0; i < batch->count; i++) {
        const oomph_block_t *block = batch->blocks[i];
        if (block == NULL || !block->moving)
            continue;
        if (!find_run(batch, block, &run))
            batch->moves[i].outcome = OOMPH_OUTCOME_NEIGHBOUR;
        else if (run.count > room - batch->page_count)
            batch->moves[i].outcome = OOMPH_OUTCOME_NO_ROOM;
        else
            choose_run(batch, &run);
    }
    join_runs(batch);
}

static void forget(const batch_t *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->blocks[i] != NULL)
            batch->blocks[i]->moving = false;
    for (size_t i = 0; i < batch->run_count; i++) {
        const oomph_swap_run_t *run = &batch->runs[i];
        for (size_t k = run->first; k < run->first + run->count; k++)
            run->segment->entries[k].moving = false;
    }
}

/* ---- Watchers */

// Tells what is about to be unmapped, without the lock.
static void announce(batch_t *batch)
{
    oomph_device_t *device = batch->device;
    const oomph_hooks_t *hooks = &oomph_process.hooks;

    if (hooks->unmapping == NULL || !atomic_load(&oomph_process.watched))
        return;
    batch->announced_count = batch->run_count;
    for (size_t i = 0; i < batch->run_count; i++) {
        const oomph_swap_run_t *run = &batch->runs[i];
        const oomph_pool_t *pool = run->segment->heap->owner;
        batch->announced[i] =
            (announced_t){oomph_segment_addr(run->segment, run->first),
                          run->count * device->pages.page_bytes, pool->stream->handle};
    }
    oomph_unlock(device);
    for (size_t i = 0; i < batch->announced_count; i++)
        hooks->unmapping(device->ordinal, batch->announced[i].addr,
                         batch->announced[i].bytes, batch->announced[i].stream);
    oomph_enter(device);
}

// Tells of what was announced and is mapped, again or still.
static void report_mapped(const batch_t *batch)
{
    oomph_device_t *device = batch->device;

    for (size_t i = 0; i < batch->announced_count; i++) {
        const announced_t *announced = &batch->announced[i];
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
                      "no block can move to the host here: that takes host pages that "
                      "can be mapped, and there are: %s",
                      oomph_host_kind_name(kind));
}

static oomph_status_t drain(oomph_device_t *device)
{
    if (oomph_streams_capture(&device->streams))
        return oomph_fail(OOMPH_ERR_STATE,
                          "no block moves while a stream captures or a MemPool is "
                          "allocated to");
    device->stats.swap_drains++;
    // What else can be wrong is the driver.
    return oomph_drain(device) ? OOMPH_OK : OOMPH_ERR_DRIVER;
}

// Waits for the device, and gives in `room` how many of the pages wanted can be had,
// those included that are free elsewhere.
static oomph_status_t make_room(oomph_device_t *device, oomph_tier_t tier, size_t want,
                                size_t *room)
{
    oomph_pages_t *pages = &device->pages;
    oomph_reach_t reach = {.tier = tier};
    size_t spare = pages->tiers[tier].spare_count;
    bool was_under_pressure = device->under_pressure;

    if (tier == OOMPH_TIER_HOST && spare < want)
        oomph_ahead_take(&device->ahead, pages, want - spare);
    bool is_short = oomph_pages_available(pages, tier, want, false) < want;
    if (is_short && tier == OOMPH_TIER_HOST &&
        oomph_ahead_recall(&device->ahead, pages) > 0)
        is_short = oomph_pages_available(pages, tier, want, false) < want;
    if (tier == OOMPH_TIER_HOST && !is_short && pages->tiers[tier].spare_count < want)
        oomph_make_host_pages(device, want); // if it fails, the exchange does
    if (is_short)
        oomph_note_pressure(device); // so that the drain tells which free pages may go
    oomph_status_t status = drain(device);
    if (status != OOMPH_OK)
        return status;
    oomph_collect(device);
    *room = oomph_pages_available(pages, tier, want, false);
    if (is_short && *room < want) {
        oomph_steal(device, &reach, want - *room, NULL);
        *room = oomph_pages_available(pages, tier, want, false);
    }
    device->under_pressure = was_under_pressure;
    return OOMPH_OK;
}

/* ---- Moving */

// Enters where the blocks chosen lie now; gives the bytes that moved.
static size_t account(const batch_t *batch)
{
    oomph_stats_t *stats = &batch->device->stats;
    bool to_host = batch->tier == OOMPH_TIER_HOST;
    size_t moved_bytes = 0;

    for (size_t i = 0; i < batch->count; i++) {
        oomph_block_t *block = batch->blocks[i];
        if (block == NULL || !block->moving || block->tier != batch->tier)
            continue;
        block->moving = false; // it may be named twice
        batch->moves[i].outcome = OOMPH_OUTCOME_THERE;
        block->survived = 0;
        moved_bytes += block->bytes;
    }
    int64_t to_host_bytes = to_host ? (int64_t)moved_bytes : -(int64_t)moved_bytes;
    oomph_counters_t *counters = &batch->device->counters;
    oomph_tier_usage_move(&batch->device->allocated_usage, &counters->allocated_bytes,
                          to_host_bytes);
    oomph_tier_usage_move(&batch->device->active_usage, &counters->active_bytes,
                          to_host_bytes);
    *(to_host ? &stats->evicted_bytes : &stats->promoted_bytes) += (int64_t)moved_bytes;
    return moved_bytes;
}

// What its user moves to the host stays there.
static void note_wishes(const batch_t *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->moves[i].outcome == OOMPH_OUTCOME_THERE)
            batch->blocks[i]->evicted = batch->tier == OOMPH_TIER_HOST;
}

static oomph_status_t move_chosen(batch_t *batch, size_t most_pages, size_t *moved)
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
        choose(batch, oomph_min(room, most_pages));
        if (batch->run_count > 0)
            status =
                oomph_swap(&device->pages, batch->runs, batch->run_count, batch->tier);
        *moved = account(batch);
        forget(batch);
    }
    report_mapped(batch);
    int64_t ns = oomph_now_ns() - start;
    device->stats.swap_ns += ns;
    device->stats.driver_ns += ns;
    return status;
}

static oomph_status_t move_batch(batch_t *batch, size_t *moved_bytes)
{
    size_t most_pages = batch->limits.most_bytes / batch->device->pages.page_bytes;
    oomph_status_t status = OOMPH_OK;
    size_t moved = 0;

    choose(batch, most_pages);
    forget(batch);
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
    batch_t batch = {.device = device,
                     .tier = tier,
                     .limits = limits,
                     .moves = moves,
                     .count = count,
                     .blocks = calloc(count, sizeof(oomph_block_t *)),
                     .runs = calloc(count, sizeof *batch.runs),
                     .announced = calloc(count, sizeof *batch.announced)};
    oomph_status_t status;

    if (count > 0 &&
        (batch.blocks == NULL || batch.runs == NULL || batch.announced == NULL))
        status = oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory to move blocks");
    else
        status = move_batch(&batch, moved_bytes);
    free(batch.blocks);
    free(batch.runs);
    free(batch.announced);
    return status;
}

oomph_status_t oomph_move(int ordinal, oomph_tier_t tier, oomph_move_t *moves,
                          size_t count, size_t *moved_bytes)
{
    oomph_device_t *device = oomph_enter_open(ordinal);
    oomph_move_limits_t limits = {.most_bytes = SIZE_MAX, .wished = true};

    if (device == NULL)
        return oomph_not_open(ordinal);
    oomph_status_t status =
        oomph_move_blocks(device, tier, moves, count, limits, moved_bytes);
    oomph_unlock(device);
    return status;
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
        *status = oomph_fail(OOMPH_ERR_INVALID, "0x%llx is in no block in use",
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

oomph_status_t oomph_mark_idle(oomph_addr_t addr)
{
    oomph_status_t status;
    oomph_device_t *device;
    oomph_block_t *block = lock_block(addr, &device, &status);

    if (block != NULL) {
        block->idle_between_steps = true;
        oomph_unlock(device);
    }
    return status;
}
