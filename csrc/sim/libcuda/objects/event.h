/* event.h - events: marks in the order of a stream. The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/base/slab.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/work.h"

struct CUevent_st {
    sim_object_t object;
    CUcontext context;
    unsigned flags; // CUevent_flags
    bool is_recorded;
    sim_ticket_t ticket;    // of the last record
    uint64_t end_ns;        // when that completed
    sim_capture_t *capture; // the last record was part of it; NULL: of none
    uint64_t capture_id;
    sim_nodes_t frontier; // what the mark stands behind in the captured graph
    sim_mark_t mark; // shared with processes; `number` is of the last record made here
};

// A record has completed; does nothing if the event was destroyed meanwhile.
void sim_event_complete(CUevent event, uint32_t generation, uint64_t now_ns);

// An event of the current context; `mark` is that of another process's, or NULL.
// Errors: INVALID_VALUE, OUT_OF_MEMORY, those of the context.
CUresult sim_event_create(CUevent *out, unsigned flags, const sim_mark_t *mark);
void sim_event_destroy(CUevent event);

// Errors: INVALID_HANDLE if there is no such event.
CUresult sim_event_check(CUevent event);

void sim_event_reset(void);
