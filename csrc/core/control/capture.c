/* capture.c - room for what a graph captures, made before the capture begins.
 *
 * While a stream captures nothing can be waited for, so nothing moves and no host page
 * is made. But when a thread is about to allocate to the pool of a graph, it does not
 * capture yet:
 *
 * - What the capture will need is taken from the steps before (demand.c), and the
 *   workspaces that libraries make for a stream that is new to them.
 * - Where the device has that much, nothing moves; what is free is waited for, if it
 *   is wanted.
 * - Else what is idle between steps moves to the host, as much as is missing, in the
 *   order that the embedder gives: only in the thread that ends the steps, as at their
 *   end.
 * - What is still missing is mapped into the pool on host pages, which serve the
 *   capture when the device has no more. Those that no capture has used others may
 *   have when they are short.
 *
 * What a graph has captured stays where it is. What moved returns like all that is idle
 * (promote.c), but not while captures go on, which would need its room again.
 *
 * Where there is room, it costs a few sums over the free blocks. Else the device is
 * waited for; then what is missing is copied over the link, or made as host pages.
 */
#include "core/control/capture.h"
#include "core/alloc/demand.h"
#include "core/alloc/free.h"
#include "core/alloc/host.h"
#include "core/control/batch.h"
#include "core/device/steal.h"

#include <stdlib.h>

enum {
    PIECES = 8,      // of page-locked memory;
    PIECES_MAX = 16, // or more, where some are smaller
};

/* ---- What is needed, and what there is */

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
    return oomph_demand_was_short(device) ? oomph_demand_largest(device)
                                          : group->largest_bytes;
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
    return oomph_demand_expected(device) - device->active_usage.host +
           (int64_t)workspace_bytes(device, request) +
           (int64_t)largest_bytes(device, group);
}

// Of that, what there is not for the group.
static size_t missing_bytes(oomph_device_t *device, const oomph_request_t *request,
                            const oomph_group_t *group)
{
    int64_t wanted = wanted_bytes(device, request, group);
    int64_t room = (int64_t)oomph_device_room(device) -
                   (int64_t)oomph_demand_locked(device, group) +
                   (int64_t)ready_bytes(device, group);

    return wanted > room ? (size_t)(wanted - room) : 0;
}

// Whether there are pages for all of it that nothing needs to be waited for.
static bool pages_are_there(oomph_device_t *device, const oomph_request_t *request,
                            const oomph_group_t *group)
{
    oomph_pages_t *pages = &device->pages;
    int64_t has = oomph_counter_current(&device->counters.active_bytes) -
                  device->active_usage.host;
    int64_t wanted = wanted_bytes(device, request, group);
    size_t more = wanted > has ? (size_t)(wanted - has) : 0;
    size_t count = oomph_round_up(more, pages->page_bytes) / pages->page_bytes;

    return oomph_pages_available(pages, OOMPH_TIER_DEVICE, count,
                                 OOMPH_RESERVE_WHOLE) == count;
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
        block->idle_between_steps = true;
        moves[chosen++].addr = addrs[i];
        found_bytes += block->bytes;
    }
    return chosen;
}

// Whether nobody else launches work on what is idle between steps: as at their ends.
static bool is_between(const oomph_device_t *device)
{
    return device->stats.step_count > 0 && !device->has_steppers &&
           pthread_equal(device->stepper, pthread_self());
}

static void move_away(oomph_device_t *device, size_t bytes)
{
    oomph_move_limits_t limits = {.most_bytes = SIZE_MAX, .idle_only = true};
    oomph_addr_t *addrs = NULL;
    size_t moved_bytes = 0;

    if (oomph_process.hooks.idle_blocks == NULL || !is_between(device))
        return;
    oomph_unlock(device);
    size_t count = oomph_process.hooks.idle_blocks(device->ordinal, &addrs);
    oomph_enter(device);
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
static void prepare_host(oomph_device_t *device, const oomph_request_t *request,
                         size_t bytes)
{
    oomph_request_context_t ctx = {.request = request,
                                   .device = device,
                                   .place = OOMPH_NO_PLACE,
                                   .prepared = true};
    bool whole = oomph_device_host_kind(device) != OOMPH_HOST_PINNED;
    size_t count = 0, least = bytes / PIECES / PIECES;
    size_t piece =
        whole ? bytes : oomph_max(oomph_demand_largest(device), bytes / PIECES);
    oomph_block_t *blocks[PIECES_MAX];

    if (oomph_pool_get(device, request, bytes, &ctx.pool) != OOMPH_OK)
        return;
    ctx.pool->users++;
    for (size_t left = bytes; left > 0 && piece > least && count < PIECES_MAX;) {
        oomph_block_t *block = NULL;
        ctx.bytes = oomph_round_up(oomph_min(piece, left), device->pages.page_bytes);
        ctx.asked_others = false;
        oomph_rung_host(&ctx, &block);
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
    ctx.pool->users--;
}

void oomph_capture_prepare(oomph_device_t *device, const oomph_request_t *request)
{
    oomph_group_t *group = oomph_group_find(device, request->pool);

    if (group->is_mem_pool || !oomph_device_offloads(device) ||
        oomph_offload_is_forbidden() || oomph_streams_capture(&device->streams))
        return;
    oomph_demand_begin(device);
    size_t missing = missing_bytes(device, request, group);
    if (missing == 0 && pages_are_there(device, request, group))
        return;
    oomph_note_pressure(device);
    oomph_drain(device); // within a capture nobody could wait for what is free
    if (missing == 0)
        return;
    move_away(device, missing);
    device->demand.recent.was_short = true; // it would have been
    missing = missing_bytes(device, request, group);
    if (missing > 0)
        prepare_host(device, request, oomph_max(missing, OOMPH_SMALL_MAX + 1));
}
