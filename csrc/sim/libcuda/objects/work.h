/* work.h - one piece of work for a stream: what it is, what it costs, what it does when
 * it completes. Where it stands in its stream is the queue's business. The caller holds
 * the driver's lock.
 */
#pragma once
#include "libcuda/base/cuda_api.h"
#include "libcuda/objects/mark.h"
#include "libcuda/objects/operator.h"

#include <stdbool.h>
#include <stdint.h>

// A place in a stream's order: reached when the stream has completed so many
// operations.
typedef struct sim_ticket {
    CUstream stream; // NULL: nothing to wait for
    uint64_t number;
} sim_ticket_t;

typedef enum sim_work_kind {
    SIM_WORK_KERNEL,  // does nothing, or touches `dst` if it has bytes
    SIM_WORK_SLEEP,   // a kernel that waits: its stream is busy, the device is not
    SIM_WORK_COMPUTE, // a function of the host that stands for a kernel
    SIM_WORK_COPY,
    SIM_WORK_SET,
    SIM_WORK_MOVE,        // `value` bytes of managed memory, to the device if `writes`
    SIM_WORK_CALL,        // a host function
    SIM_WORK_RECORD,      // an event
    SIM_WORK_WAIT,        // for a ticket, or for a mark
    SIM_WORK_WAIT_VALUE,  // for a value in memory
    SIM_WORK_FREE,        // memory of a pool
    SIM_WORK_GRAPH_ALLOC, // a graph's memory is in use
    SIM_WORK_GRAPH_FREE,  // it is not
} sim_work_kind_t;

typedef struct sim_work {
    sim_work_kind_t kind;
    const char *call; // the driver call that asked for it
    uint64_t cost_ns; // besides what its memory takes (engine.h)

    // Memory it touches: `rows` rows of `bytes` at each end, `*_pitch` bytes apart.
    uint64_t dst, src; // 0: none
    uint64_t bytes;    // 0: touches no memory
    uint64_t rows, dst_pitch, src_pitch;
    bool is_read;      // its source was pageable: read when the copy was asked for
    void *staging;     // the bytes read, owned; NULL: none were kept
    uint64_t checksum; // of a pinned source when the copy was asked for; 0: not taken

    // To write or to wait for; of a copy, what the host gets when the source is not
    // real.
    uint64_t value;
    unsigned value_bytes; // 1, 2, 4 or 8
    unsigned wait_flags;  // CUstreamWaitValue_flags
    bool writes;          // a kernel writes `dst`, otherwise it reads
    // Of an operator whose cost says what it writes. Of a copy: behind its kernels, so
    // that nothing is known of what it reads.
    bool is_part;

    bool is_dry;            // moves no bytes: what it stands for is computed otherwise
    sim_compute_t *compute; // owned; NULL but for SIM_WORK_COMPUTE
    sim_cost_t *cost;       // owned; of an operator's kernels, or NULL

    CUhostFn function; // called with `argument`
    void *argument;
    CUevent event;       // recorded or waited for
    uint32_t generation; // of the event, which may be destroyed meanwhile
    sim_mark_t mark;     // recorded or waited for; of an event that is not shared none
    sim_ticket_t ticket; // to wait for
} sim_work_t;

// Whether effects.c runs the work.
static inline bool sim_work_runs_apart(const sim_work_t *work)
{
    return work->kind == SIM_WORK_CALL ||
           (work->kind == SIM_WORK_COMPUTE && work->compute->what.makes_calls);
}

// What the work needs of other processes; NULL: nothing.
static inline const oomph_sim_meeting_t *sim_work_meeting(const sim_work_t *work)
{
    return work->compute != NULL ? work->compute->what.meeting : NULL;
}

// Whether the work waits for what happens outside of all streams: a value in memory, or
// another process.
static inline bool sim_work_waits_outside(const sim_work_t *work)
{
    return work->kind == SIM_WORK_WAIT_VALUE || sim_work_meeting(work) != NULL ||
           (work->kind == SIM_WORK_WAIT && work->mark.board != NULL);
}

// Whether the work writes any of `bytes` at `addr`.
bool sim_work_writes(const sim_work_t *work, uint64_t addr, uint64_t bytes);

// Whether the work touches memory at all.
static inline bool sim_work_uses_memory(const sim_work_t *work)
{
    return work->bytes > 0 || work->compute != NULL;
}

// Whether the work reads or writes any of `bytes` at `addr`.
bool sim_work_touches(const sim_work_t *work, uint64_t addr, uint64_t bytes);

// The memory that work uses, in `own` or its own. Work of several rows is left out,
// since rows may lie between each other, and so are waits for values, which make the
// order of others.
size_t sim_work_ranges(const sim_work_t *work, oomph_sim_range_t own[2],
                       const oomph_sim_range_t **ranges);

// Whether one of the two writes what the other reads or writes; `addr` is where.
bool sim_work_conflicts(const sim_work_t *a, const sim_work_t *b, uint64_t *addr);

// Another owner of what the work shares, and one less.
void sim_work_share(const sim_work_t *work);
void sim_work_unshare(const sim_work_t *work);

// Frees what the work owns; it must not be used any more.
void sim_work_discard(const sim_work_t *work);

// A sum over bytes, never 0, that shows whether they were changed.
uint64_t sim_checksum(const void *bytes, size_t count);
