/* submit.h - work that is given to a stream, in order with the default stream. The
 * caller holds the driver's lock.
 */
#pragma once
#include "libcuda/objects/stream.h"

// Gives `work` to the stream, or to the graph that the stream captures; takes over what
// the work owns, also on failure. `ticket`, if not NULL, becomes the place of the work.
// Errors: OUT_OF_MEMORY, those of a capture.
CUresult sim_queue_submit(CUstream stream, const sim_work_t *work,
                          sim_ticket_t *ticket);

// Has the stream wait for all that others of its context have been given. Errors:
// OUT_OF_MEMORY.
CUresult sim_queue_join(CUstream stream);
