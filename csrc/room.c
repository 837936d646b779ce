/* room.c - room for what a graph captures, made before the capture begins.
 *
 * While a stream captures nothing can be waited for, so nothing moves and no host page
 * is made. But when a thread is about to allocate to the pool of a graph, it does not
 * capture yet:
 *
 * - What the capture will need is not known, but it is part of a step: what the last
 *   steps had in use at their peak beyond what lived at their beginning, and more, for
 *   copies of inputs and pages that are not full; and the workspaces that libraries
 *   make for a stream that is new to them. Where memory is short, or was, all is
 *   reckoned generously: then too little would be an error, too much only slow.
 * - Where the device has that much, nothing moves; what is free is waited for, if it
 *   is wanted.
 * - Else what rests between steps moves to the host, as much as is missing, in the
 *   order that the embedder gives: only in the thread that ends the steps, as at their
 *   end.
 * - What is still missing is mapped into the pool on host pages, which serve the
 *   capture when the device has no more. Those that no capture has used others may
 *   have when they are short.
 *
 * What a graph has captured stays where it is. What moved returns like all that rests
 * (promote.c), but not while captures go on, which would need its room again.
 */
#include "claim.h"

#include <stdlib.h>

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

enum {
    SHARE = 4,          // a quarter more than steps have needed so far,
    SHARE_IF_SHORT = 2, // or half as much more
    RECENT_STEPS = 16,  // after which captures are taken to be over, and what steps
                        // needed is forgotten, at the second turn
    PIECES = 8,         // of page-locked memory;
    PIECES_MAX = 16,    // or more, where some are smaller
};

/* ---- What is needed, and what there is */

static int64_t active_bytes(const oomph_device_t *device)
{
    return oomph_tally_current(&device->tallies.active_bytes);
}

static int64_t high_bytes(oomph_device_t *device)
{
    oomph_split_move(&device->split, &device->tallies.active_bytes, 0);
    return device->split.high;
}

void oomph_room_note(const oomph_claim_t *claim, oomph_block_t *block)
{
    oomph_demand_t *demand = &claim->device->demand;
    oomph_stream_state_t *stream = claim->pool->stream;
    oomph_group_t *group = claim->pool->group;

    demand->recent.was_short |= block == NULL || claim->rescued > 0;
    demand->largest_bytes = oomph_max(demand->largest_bytes, claim->bytes);
    if (group != NULL)
        group->largest_bytes = oomph_max(group->largest_bytes, claim->bytes);
    if (block == NULL || !claim->request->essential)
        return;
    block->workspace = true;
    stream->workspace_bytes += block->bytes;
    stream->workspace_peak = oomph_max(stream->workspace_peak, stream->workspace_bytes);
    demand->workspace_peak = oomph_max(demand->workspace_peak, stream->workspace_peak);
}

void oomph_room_end_step(oomph_device_t *device, int64_t high)
{
    oomph_demand_t *demand = &device->demand;

    if (device->stats.step_count % RECENT_STEPS == 0) {
        demand->earlier = demand->recent;
        demand->recent = (oomph_needs_t){0};
    }
    // Nobody knows what the first step found at its beginning.
    if (demand->base_is_known)
        demand->recent.growth = larger(demand->recent.growth, high - demand->base);
    demand->base = active_bytes(device);
    demand->base_is_known = true;
    demand->base_is_begin = false;
}

static void note_begin(oomph_device_t *device)
{
    oomph_demand_t *demand = &device->demand;

    demand->captured_step = device->stats.step_count;
    demand->captured = true;
    if (demand->base_is_begin)
        return;
    demand->base = active_bytes(device);
    demand->base_is_known = demand->base_is_begin = true;
}

static bool was_short(const oomph_device_t *device)
{
    return device->demand.recent.was_short || device->demand.earlier.was_short;
}

// What a step is taken to have in use at its peak.
static int64_t expected_bytes(oomph_device_t *device)
{
    const oomph_demand_t *demand = &device->demand;
    int64_t growth = larger(larger(demand->recent.growth, demand->earlier.growth),
                            high_bytes(device) - demand->base);

    return demand->base + growth +
           growth / (was_short(device) ? SHARE_IF_SHORT : SHARE);
}

// Free bytes on the device in pieces of fewer than `below`.
static size_t free_bytes(const oomph_pool_t *pool, size_t below)
{
    size_t bytes = 0;

    for (const oomph_segment_t *s = pool->heap.segments; s != NULL; s = s->next)
        for (const oomph_block_t *b = s->first; b != NULL; b = b->next)
            if (b->state == OOMPH_BLOCK_FREE && b->tier == OOMPH_TIER_DEVICE &&
                b->bytes < below)
                bytes += b->bytes;
    return bytes;
}

// Free bytes that pools in use keep from `group`. Of its own, those in pieces that are
// too small for what it has asked for, where that matters.
static size_t kept_bytes(const oomph_device_t *device, const oomph_group_t *group)
{
    size_t bytes = 0;

    for (const oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next) {
        bool own = group != NULL && pool->group == group;
        if (own && was_short(device))
            bytes += free_bytes(pool, pool->small ? 0 : group->largest_bytes);
        if (!own && !oomph_pool_floats(pool))
            bytes += free_bytes(pool, SIZE_MAX);
    }
    return bytes;
}

// What the group has ready on the host in one piece: blocks do not lie on both tiers,
// so that pieces between others serve little.
static size_t ready_bytes(const oomph_device_t *device, const oomph_group_t *group)
{
    size_t bytes = 0;

    for (const oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next)
        if (pool->group == group)
            for (const oomph_block_t *b = pool->heap.host; b != NULL;
                 b = b->links.after)
                bytes = oomph_max(bytes, b->bytes);
    return bytes;
}

// The largest block that may be asked for: so much may stay unused at the end, since it
// is too small for the next.
static size_t largest_bytes(const oomph_device_t *device, const oomph_group_t *group)
{
    return was_short(device) ? device->demand.largest_bytes : group->largest_bytes;
}

// What libraries take on a stream as workspaces, and have never taken on this one.
static size_t workspace_bytes(oomph_device_t *device, const oomph_request_t *request)
{
    size_t most_bytes = device->demand.workspace_peak;
    oomph_stream_state_t *stream;

    if (oomph_stream_get(&device->streams, device->ordinal, request->stream,
                         request->stream_lives, &stream) != OOMPH_OK)
        return most_bytes;
    return most_bytes - oomph_min(most_bytes, stream->workspace_peak);
}

// What the step will have on the device at its peak.
static int64_t wanted_bytes(oomph_device_t *device, const oomph_request_t *request,
                            const oomph_group_t *group)
{
    return expected_bytes(device) - device->split.host +
           (int64_t)workspace_bytes(device, request) +
           (int64_t)largest_bytes(device, group);
}

// Of that, what there is not for the group.
static size_t missing_bytes(oomph_device_t *device, const oomph_request_t *request,
                            const oomph_group_t *group)
{
    int64_t wanted = wanted_bytes(device, request, group);
    int64_t room = (int64_t)oomph_device_room(device) -
                   (int64_t)kept_bytes(device, group) +
                   (int64_t)ready_bytes(device, group);

    return wanted > room ? (size_t)(wanted - room) : 0;
}

// Whether there are pages for all of it that nothing needs to be waited for.
static bool pages_are_there(oomph_device_t *device, const oomph_request_t *request,
                            const oomph_group_t *group)
{
    oomph_pages_t *pages = &device->pages;
    int64_t has = active_bytes(device) - device->split.host;
    int64_t more = larger(wanted_bytes(device, request, group) - has, 0);
    size_t count = oomph_round_up((size_t)more, pages->page_bytes) / pages->page_bytes;

    return oomph_pages_available(pages, OOMPH_TIER_DEVICE, count, false) == count;
}

size_t oomph_room_kept(oomph_device_t *device, int64_t device_peak)
{
    const oomph_demand_t *demand = &device->demand;
    bool captures_go_on =
        demand->captured &&
        device->stats.step_count - demand->captured_step < RECENT_STEPS;
    int64_t peak = device_peak;

    if (captures_go_on)
        peak = larger(peak, expected_bytes(device) - device->split.host);
    return (size_t)peak + kept_bytes(device, NULL);
}

/* ---- What moves away */

// Those of the blocks, from the first on, that have so many bytes on the device.
static size_t choose(const oomph_device_t *device, const oomph_addr_t *addrs,
                     size_t count, size_t bytes, oomph_move_t *moves)
{
    size_t chosen = 0, found_bytes = 0;

    for (size_t i = 0; i < count && found_bytes < bytes; i++) {
        oomph_block_t *block = oomph_block_at(device, addrs[i]);
        if (block == NULL || !oomph_block_may_move(block, OOMPH_TIER_HOST))
            continue;
        block->calm = true;
        moves[chosen++].addr = addrs[i];
        found_bytes += block->bytes;
    }
    return chosen;
}

// Whether nobody else launches work on what rests between steps: as at their ends.
static bool is_between(const oomph_device_t *device)
{
    return device->stats.step_count > 0 && !device->has_steppers &&
           pthread_equal(device->stepper, pthread_self());
}

static void move_away(oomph_device_t *device, size_t bytes)
{
    oomph_move_limits_t limits = {.most_bytes = SIZE_MAX, .calm = true};
    oomph_addr_t *addrs = NULL;
    size_t moved_bytes = 0;

    if (oomph_process.hooks.resting == NULL || !is_between(device))
        return;
    oomph_unlock(device);
    size_t count = oomph_process.hooks.resting(device->ordinal, &addrs);
    oomph_lock(device);
    oomph_move_t *moves = calloc(count, sizeof *moves);
    if (moves != NULL) {
        count = choose(device, addrs, count, bytes, moves);
        // All is as before if it fails: the capture has less room.
        if (oomph_move_blocks(device, OOMPH_TIER_HOST, moves, count, limits,
                              &moved_bytes) == OOMPH_ERR_DRIVER)
            device->stats.swap_failures++;
    }
    free(moves);
    free(addrs);
}

/* ---- What is laid in */

// As much of it as the host has. A graph keeps page-locked memory whole, so that is not
// all of one piece: one has the largest block, the others have less.
static void lay_in(oomph_device_t *device, const oomph_request_t *request, size_t bytes)
{
    oomph_claim_t claim = {
        .request = request, .device = device, .place = OOMPH_NO_PLACE, .laid_in = true};
    bool whole = oomph_device_host_kind(device) != OOMPH_HOST_PINNED;
    size_t count = 0, least = bytes / PIECES / PIECES;
    size_t piece = whole ? bytes : device->demand.largest_bytes;
    oomph_block_t *blocks[PIECES_MAX];

    if (oomph_pool_get(device, request, bytes, &claim.pool) != OOMPH_OK)
        return;
    claim.pool->claims++;
    for (size_t left = bytes; left > 0 && piece > least && count < PIECES_MAX;) {
        oomph_block_t *block = NULL;
        claim.bytes = oomph_round_up(oomph_min(piece, left), device->pages.page_bytes);
        claim.begged = false;
        oomph_rung_host(&claim, &block);
        if (block == NULL) {
            piece /= 2;
            continue;
        }
        blocks[count++] = block;
        left -= oomph_min(block->bytes, left);
        if (!whole)
            piece = oomph_min(piece, bytes / PIECES);
    }
    while (count > 0)
        oomph_heap_give(blocks[--count]);
    claim.pool->claims--;
}

void oomph_room_make(oomph_device_t *device, const oomph_request_t *request)
{
    oomph_group_t *group = oomph_group_find(device, request->pool);

    if (group->is_mem_pool || oomph_process.config.offload == OOMPH_OFFLOAD_OFF ||
        oomph_offload_is_forbidden() || oomph_streams_capture(&device->streams))
        return;
    note_begin(device);
    size_t missing = missing_bytes(device, request, group);
    if (missing == 0 && pages_are_there(device, request, group))
        return;
    oomph_press(device);
    oomph_drain(device); // within a capture nobody could wait for what is free
    if (missing == 0)
        return;
    move_away(device, missing);
    device->demand.recent.was_short = true; // it would have been
    missing = missing_bytes(device, request, group);
    if (missing > 0)
        lay_in(device, request, oomph_max(missing, OOMPH_SMALL_MAX + 1));
}
