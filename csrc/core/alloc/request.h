/* request.h - the context of a request on its way up the ladder. The caller holds the
 * device lock; a rung may give it up for a while.
 */
#pragma once
#include "core/device/device.h"

typedef struct oomph_request_context {
    const oomph_request_t *request;
    oomph_device_t *device;
    oomph_pool_t *pool;
    size_t bytes;         // rounded
    size_t place;         // planned, or OOMPH_NO_PLACE
    oomph_span_t span;    // where it goes on a miss
    bool asked;           // the callbacks have been asked
    int collections;      // how often garbage has been collected,
    bool collected;       // whether the last time gave anything,
    int64_t traffic;      // and what had been taken and given back before
    int rooms;            // how often others were sent away to make room
    bool host_expected;   // if it finds no room at once, it goes to the host
    bool buffer;          // for our own copies: the CPU need not use it
    bool prepared;        // to be ready for a capture (capture.c)
    const char *host_ban; // why it must not fall back to the host; NULL: it may
    bool spends_reserve;  // nothing else is left but the error
    bool whole;           // it does not come on both tiers
    bool asked_others;    // other devices have been asked for host memory
    bool fell_back_to_host;
    int64_t rescued;         // ordinal of this rescue within its step, from 1; 0: none
    size_t rescued_bytes;    // of the block, on the host
    oomph_status_t status;   // why, after OOMPH_FAIL
    const char *uncollected; // why garbage was not, as the error has it; "" or NULL
} oomph_request_context_t;

typedef enum oomph_rung_result {
    OOMPH_RETRY, // something changed: try again from the first rung
    OOMPH_NEXT,  // go on to the next rung
    OOMPH_FAIL,  // ctx->status says why
} oomph_rung_result_t;

static inline oomph_rung_result_t oomph_rung_fail(oomph_request_context_t *ctx,
                                                  oomph_status_t status)
{
    ctx->status = status;
    return OOMPH_FAIL;
}

// What the request leaves of the reserve.
static inline oomph_reserve_t oomph_kept_reserve(const oomph_request_context_t *ctx)
{
    if (ctx->spends_reserve)
        return OOMPH_RESERVE_SPENT;
    return ctx->pool->small || ctx->request->may_use_reserve ? OOMPH_RESERVE_HALF
                                                             : OOMPH_RESERVE_WHOLE;
}
