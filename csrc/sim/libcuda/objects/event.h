/* event.h - events: marks in the order of a stream. The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/memory/slab.h"
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
    sim_mark_t mark; // with other processes; `number` is of the last record made here
};

// A record has completed; does nothing if the event was destroyed meanwhile.
void sim_event_complete(CUevent event, uint32_t generation, uint64_t now_ns);

// Put a mark into a stream's order, or a wait for the mark that there is. For captured
// external events too, when their graph runs.
CUresult sim_event_record(CUevent event, CUstream stream);
CUresult sim_event_wait(CUevent event, CUstream stream);

// The mark by which other processes know the event. Errors: INVALID_HANDLE if it was
// not made for that.
CUresult sim_event_share(CUevent event, sim_mark_t *mark);
// An event that stands for another process's.
CUresult sim_event_open(CUevent *event, const sim_mark_t *mark);

void sim_event_reset(void);
