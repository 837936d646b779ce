/* stream.h - streams: named queues of work of one context. The caller holds the
 * driver's lock.
 */
#pragma once
#include "libcuda/base/slab.h"
#include "libcuda/memory/device.h"
#include "libcuda/objects/nodes.h"
#include "libcuda/objects/work.h"

enum {
    SIM_STREAM_PRIORITY_GREATEST = -5,
    SIM_STREAM_ENDS = 64, // operations of which it is known when they ended
};

typedef struct sim_operation sim_operation_t;

// How far a search for what some work waits for has come in a stream.
typedef struct sim_reach {
    uint64_t search; // its number; of an older search the rest means nothing
    uint64_t number; // up to this operation the work waits for the stream
    const sim_operation_t *next; // the first that was not looked at
    bool waits_for_value;        // one that was waits for a value
} sim_reach_t;

struct CUstream_st {
    sim_object_t object;
    CUcontext context;
    unsigned flags; // CUstream_flags
    int priority;
    uint64_t id; // unique among all streams ever made
    bool is_default;

    // Kept by pending.c and queue.c. The two counts go on when the stream is reused, so
    // that a ticket is good for ever.
    uint64_t enqueued_count;
    uint64_t completed_count;
    uint64_t ends_ns[SIM_STREAM_ENDS]; // of the last that completed, by number
    uint64_t default_seen;    // last operation of the default stream it waits for
    uint64_t seen_by_default; // its last operation that the default stream waits for
    sim_operation_t *head, *tail;
    uint64_t pending_count;
    uint64_t memory_user_count; // of these, those that touch memory
    bool held;
    bool is_ready, is_blocked; // in the list of that name
    CUstream next_ready, next_blocked;

    sim_reach_t reach; // kept by race.c

    // Kept by capture.c.
    struct sim_capture *capture; // NULL: not capturing
    sim_nodes_t frontier;        // the nodes that the next one depends on
};

// NULL without host memory.
CUstream sim_stream_create(CUcontext context, unsigned flags, int priority);
// Destroys it; what it was given goes on.
void sim_stream_give(CUstream stream);

// Errors: OUT_OF_MEMORY.
CUresult sim_stream_create_default(CUcontext context);

// A stream that no program knows, for work that comes after that of all others. NULL
// without host memory.
CUstream sim_stream_joint(CUcontext context);

// Streams by number, for loops over all: NULL past the last. Some may not be live but
// still have work.
CUstream sim_stream_at(uint32_t index);

// Whether the stream orders itself with the default stream.
bool sim_stream_is_blocking(const struct CUstream_st *stream);

// Whether the default stream of its context waits for it.
bool sim_stream_delays_default(const struct CUstream_st *stream);

void sim_stream_reset(void);
