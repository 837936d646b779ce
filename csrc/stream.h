/* stream.h - what has finished on which stream, and frees that wait for it.
 *
 * A stream's life is cut into epochs. What is freed carries the number of the epoch
 * that is open; closing an epoch records one event, and when that event has passed, all
 * work that was queued before anything freed in the epoch has finished. So one event
 * serves many frees, and none is recorded before somebody asks.
 *
 * The caller holds the device lock. Only oomph_stream_wait() waits for the GPU.
 */
#pragma once
#include "block.h"
#include "driver.h"

enum { OOMPH_EPOCH_RING = 32 };

typedef struct oomph_stream_state oomph_stream_state_t;

struct oomph_stream_state {
    oomph_stream_state_t *next;
    oomph_stream_t handle;
    uint64_t id;        // of cuStreamGetId; unset if `lives`
    bool lives;         // never destroyed: the handle names it
    uint64_t open;      // the epoch of what is freed now; from 1
    uint64_t passed;    // epochs up to this one have passed
    uint64_t floor;     // slots name no epoch below this one: they count as it
    uint64_t wanted;    // the newest epoch that a deferred free waits for
    uint64_t draining;  // the newest epoch that the drain under way covers
    size_t freed_bytes; // in the open epoch
    struct {
        uint64_t epoch;
        oomph_event_t event;
    } ring[OOMPH_EPOCH_RING]; // closed epochs that have not passed, oldest first
    unsigned first, count;
    bool waited_for; // a thread waits for the oldest event, without the lock
    bool gated;      // a gate (gate.h) has to hold it by itself
    void *pools[2];  // the default pools of the stream, for the caller
};

typedef struct oomph_streams {
    const oomph_driver_t *driver;
    int device;
    int scopes; // graph captures, or MemPool contexts, under way
    oomph_stream_state_t *list;
    oomph_stream_state_t *last; // found last
    oomph_event_t spare[OOMPH_EPOCH_RING];
    unsigned spare_count;
} oomph_streams_t;

void oomph_streams_init(oomph_streams_t *streams, const oomph_driver_t *driver,
                        int device);
void oomph_streams_destroy(oomph_streams_t *streams);

// The stream that the handle names now. `lives`: the caller knows that it is never
// destroyed. Errors: OOMPH_ERR_DRIVER, OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_stream_get(oomph_streams_t *streams, oomph_stream_t handle,
                                bool lives, oomph_stream_state_t **stream);

// Whether the stream captures: then no event of it is recorded or waited for. One whose
// handle must not be used is taken to capture whenever anything may.
// oomph_stream_captures() takes a failure to tell for yes. Errors: OOMPH_ERR_DRIVER.
oomph_status_t oomph_stream_ask(const oomph_streams_t *streams,
                                const oomph_stream_state_t *stream, bool *captures);
bool oomph_stream_captures(const oomph_streams_t *streams,
                           const oomph_stream_state_t *stream);

// Whether any stream captures.
bool oomph_streams_capture(const oomph_streams_t *streams);

// Closes the open epoch. Without effect while the stream captures, while too many
// epochs have not passed, or if its handle must not be used; `there`: the caller knows
// that the stream exists now.
void oomph_stream_close(oomph_streams_t *streams, oomph_stream_state_t *stream,
                        bool there);
// Looks which epochs have passed; true if some have since the last look.
bool oomph_stream_poll(oomph_streams_t *streams, oomph_stream_state_t *stream);
// The same, after closing the open epoch if anything was freed in it: else nobody could
// know that its work has finished.
void oomph_stream_catch_up(oomph_streams_t *streams, oomph_stream_state_t *stream);

// Waiting without the lock. begin() closes the open epoch and gives the event to wait
// for, or false if there is nothing to wait for or the stream captures. For a stream
// whose handle must not be used it is the whole device that is waited for. Between
// begin() and end() the caller gives up the lock and calls wait().
typedef struct oomph_wait {
    oomph_stream_state_t *stream; // NULL: the whole device
    oomph_event_t event;
} oomph_wait_t;
bool oomph_stream_wait_begin(oomph_streams_t *streams, oomph_stream_state_t *stream,
                             oomph_wait_t *wait);
oomph_status_t oomph_stream_wait(const oomph_streams_t *streams,
                                 const oomph_wait_t *wait);
void oomph_stream_wait_end(oomph_streams_t *streams, const oomph_wait_t *wait,
                           oomph_status_t waited);

// The same for all streams at once; false while any of them captures.
bool oomph_streams_drain_begin(oomph_streams_t *streams, oomph_wait_t *wait);

// What a stamp means: nothing was stamped below the floor.
static inline uint64_t oomph_epoch_of(uint64_t stamp,
                                      const oomph_stream_state_t *stream)
{
    return stamp > stream->floor ? stamp : stream->floor;
}

/* ---- Blocks that other streams use */

typedef struct oomph_use {
    oomph_stream_state_t *stream;
    uint64_t epoch; // once freed: what must have passed
} oomph_use_t;

// Takes the place of a block's user pointer while the block is `shared`.
typedef struct oomph_uses {
    struct oomph_uses *next; // in the list of deferred frees
    oomph_block_t *block;
    void *user;
    oomph_site_t freed_at; // of a guarded block: who freed it; 0: unknown
    int64_t freed_ns;      // and when
    size_t count;
    oomph_use_t use[];
} oomph_uses_t;

typedef struct oomph_deferred {
    oomph_uses_t *first, **last; // freed blocks that wait, oldest first
    size_t count;
} oomph_deferred_t;

// Notes that the stream uses the block. Errors: OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_uses_add(oomph_block_t *block, oomph_stream_state_t *stream);
// Uses that name one stream, for a block to come; NULL without host memory.
oomph_uses_t *oomph_uses_new(oomph_stream_state_t *stream);
// Makes them those of a block that is not shared.
void oomph_uses_attach(oomph_uses_t *uses, oomph_block_t *block);
// Defers the free of a shared block. Its streams must exist, but for its `own`.
void oomph_uses_defer(oomph_deferred_t *deferred, oomph_streams_t *streams,
                      oomph_block_t *block, const oomph_stream_state_t *own);
// Takes out the blocks whose other streams have finished, linked by `next`. Records the
// events that they wait for, where that has not happened yet.
oomph_uses_t *oomph_uses_collect(oomph_deferred_t *deferred, oomph_streams_t *streams);
// Lets a block that was taken out wait again.
void oomph_uses_wait(oomph_deferred_t *deferred, oomph_uses_t *uses);

static inline void *oomph_block_user(const oomph_block_t *block)
{
    return block->shared ? ((const oomph_uses_t *)block->use.user)->user
                         : block->use.user;
}

// A block that is freed no longer names what its user has taken back.
static inline void oomph_block_forget_user(oomph_block_t *block)
{
    if (block->shared)
        ((oomph_uses_t *)block->use.user)->user = NULL;
    else
        block->use.user = NULL;
}
