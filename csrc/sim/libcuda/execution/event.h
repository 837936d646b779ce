/* event.h - events of graphs that run, and of other processes. The caller holds the
 * driver's lock.
 */
#pragma once
#include "libcuda/objects/event.h"

// Put a mark into a stream's order, or a wait for the mark that there is. For captured
// external events too, when their graph runs.
CUresult sim_event_record(CUevent event, CUstream stream);
CUresult sim_event_wait(CUevent event, CUstream stream);

// The mark by which other processes know the event. Errors: INVALID_HANDLE if it was
// not made for that.
CUresult sim_event_share(CUevent event, sim_mark_t *mark);
// An event that stands for another process's.
CUresult sim_event_open(CUevent *event, const sim_mark_t *mark);
