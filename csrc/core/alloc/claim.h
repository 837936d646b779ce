/* claim.h - a request on its way up the ladder. The caller holds the device lock; a
 * rung may give it up and take it again.
 */
#pragma once
#include "core/device/device.h"

typedef struct oomph_claim {
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
    bool foreseen;        // if it finds no room at once, it goes to the host
    bool buffer;          // for our own copies: the CPU need not use it
    bool laid_in;         // to be ready for a capture (room.c)
    const char *host_ban; // why it must not be born on host; NULL: it may
    bool begged;          // other devices have been asked for host memory
    bool born_on_host;
    int64_t rescued;         // ordinal of this rescue within its step, from 1; 0: none
    oomph_status_t status;   // why, where a rung FAILED
    const char *uncollected; // why garbage was not, as the error has it; "" or NULL
} oomph_claim_t;

typedef enum oomph_gain {
    OOMPH_GAINED,  // something changed: try again
    OOMPH_NOTHING, // go on to the next rung
    OOMPH_FAILED,  // claim->status says why
} oomph_gain_t;

static inline oomph_gain_t oomph_failed(oomph_claim_t *claim, oomph_status_t status)
{
    claim->status = status;
    return OOMPH_FAILED;
}

// Whether the request may use the headroom.
static inline bool oomph_is_essential(const oomph_claim_t *claim)
{
    return claim->pool->small || claim->request->essential;
}
