/* capture.h - the capture of streams into graphs: who captures, which calls that
 * forbids, and how other streams join. The caller holds the driver's lock.
 *
 * A stream that captures has a frontier: the nodes that its next work depends on. Work
 * becomes a node and the new frontier; an event keeps the frontier that it stands
 * behind, and a wait for it adds that to the frontier of the stream.
 */
#pragma once
#include "libcuda/objects/stream.h"

typedef struct sim_capture {
    sim_object_t object;
    uint64_t id; // unique among all captures ever made
    CUstreamCaptureMode mode;
    const void *owner; // stands for the thread that began it
    CUstream origin;
    CUgraph graph;
    bool is_invalid;
} sim_capture_t;

// Whether any stream captures; asked without the lock.
bool sim_capture_is_any(void);

// Whether this thread has begun the capture.
bool sim_capture_is_of_thread(const sim_capture_t *capture);

// Sets how unsafe calls of this thread are treated; gives how they were until now.
CUstreamCaptureMode sim_capture_exchange_mode(CUstreamCaptureMode mode);

// Begins the capture of a stream that does not capture. Errors: OUT_OF_MEMORY.
CUresult sim_capture_begin(CUstream stream, CUstreamCaptureMode mode);
// Ends it for all streams; the graph is left.
void sim_capture_finish(sim_capture_t *capture);

// A stream of the context that captures and orders itself with the default stream, or
// NULL.
CUstream sim_capture_find_implicit(CUcontext context);

// Gives work to the graph if the stream captures: then `captured` is true, and what the
// work owns is the graph's. Errors: STREAM_CAPTURE_INVALIDATED,
// STREAM_CAPTURE_IMPLICIT, OUT_OF_MEMORY.
CUresult sim_capture_intercept(CUstream stream, const sim_work_t *work, bool *captured);

// For calls that are not safe while something captures: the error if this thread must
// not make them now. The captures that forbid it become invalid.
CUresult sim_capture_forbid(void);

// The same for calls that wait for a whole context.
CUresult sim_capture_forbid_in_context(CUcontext context);

// The same for calls that wait for a stream, or ask how far it is.
CUresult sim_capture_forbid_wait(CUstream stream);

// For calls that a capturing stream cannot take: makes its capture invalid and returns
// STREAM_CAPTURE_UNSUPPORTED.
CUresult sim_capture_refuse(CUstream stream);
void sim_capture_invalidate(sim_capture_t *capture);

// Whether a capture that was seen before, with this id, goes on.
bool sim_capture_is_active(const sim_capture_t *capture, uint64_t id);

// Lets `stream` take part: its next work depends on `nodes`. Errors: OUT_OF_MEMORY,
// STREAM_CAPTURE_IMPLICIT for a default stream.
CUresult sim_capture_join(CUstream stream, sim_capture_t *capture,
                          const sim_nodes_t *nodes);

// Ends what a destroyed stream captured.
void sim_capture_leave(CUstream stream);

void sim_capture_reset(void);
