/* capture.h - whether a stream captures, or may begin to. The caller holds the device
 * lock.
 */
#pragma once
#include "core/stream/stream.h"

// The calling thread is about to begin a capture on the stream, or has ended what it
// began. In between nobody else records an event, until that thread allocates or asks
// again: a capture may begin at any moment.
void oomph_streams_begin(oomph_streams_t *streams, oomph_stream_state_t *stream);
void oomph_streams_end(oomph_streams_t *streams);

// Whether the stream captures: then no event of it is recorded or waited for. The
// driver is asked, so that a capture that failed is over once PyTorch has ended it. For
// a stream that may be gone, what was true when it was used last counts. A failure is
// taken for yes.
bool oomph_stream_captures(const oomph_streams_t *streams,
                           const oomph_stream_state_t *stream);

// Whether any stream captures, or may begin to. Errors: OOMPH_ERR_DRIVER.
oomph_status_t oomph_streams_ask(oomph_streams_t *streams, bool *capture);
// The same; a failure is taken for yes.
bool oomph_streams_capture(oomph_streams_t *streams);

// The thread that was about to begin, and comes again, has begun or did not mean to.
static inline void oomph_streams_see_begun(oomph_streams_t *streams)
{
    if (streams->beginning && pthread_equal(streams->beginner, pthread_self()))
        streams->beginning = false;
}
