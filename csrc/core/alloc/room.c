/* room.c - the rung of the ladder on which others leave to make room.
 *
 * A block that falls back to the host is slow each time that a kernel uses it. What is
 * saved for later is not used for a while: it goes to the host once and comes back
 * once. Which that is only the embedder knows, so it is asked before a block falls
 * back. The request then waits for the copies, as for all frees that wait for streams.
 */
#include "core/alloc/room.h"
#include "core/alloc/free.h"
#include "core/alloc/host_refusal.h"

enum { TIMES_MAX = 32 }; // that one request asks, as others may take what came free

// Whether nothing may leave for the block's sake.
static bool is_banned(const oomph_request_context_t *ctx)
{
    return oomph_process.config.strict || oomph_leaving_ban_now(ctx) != NULL;
}

oomph_rung_result_t oomph_rung_room(oomph_request_context_t *ctx)
{
    oomph_device_t *device = ctx->device;
    size_t (*make_room)(int, size_t) = oomph_process.hooks.make_room;

    if (make_room == NULL || ctx->rooms == TIMES_MAX || is_banned(ctx))
        return OOMPH_NEXT;
    size_t want = oomph_missing_bytes(ctx);
    ctx->rooms++;
    oomph_unlock(device);
    size_t bytes = make_room(device->ordinal, want);
    oomph_enter(device);
    if (bytes == 0)
        return OOMPH_NEXT;
    device->stats.rungs[OOMPH_RUNG_ROOM]++;
    return OOMPH_RETRY;
}
