/* capture.c - whether a stream captures. The driver is asked each time: nobody else
 * knows how a capture ended.
 */
#include "core/stream/capture.h"

void oomph_streams_begin(oomph_streams_t *streams, oomph_stream_state_t *stream)
{
    streams->beginning = true;
    streams->beginner = pthread_self();
    stream->capturing = !stream->lives;
}

void oomph_streams_end(oomph_streams_t *streams)
{
    streams->beginning = false;
}

static oomph_status_t ask(const oomph_streams_t *streams,
                          const oomph_stream_state_t *stream, bool *captures)
{
    if (stream->lives)
        return streams->driver->stream_captures(stream->device, stream->handle,
                                                captures);
    *captures = stream->capturing;
    return OOMPH_OK;
}

bool oomph_stream_captures(const oomph_streams_t *streams,
                           const oomph_stream_state_t *stream)
{
    bool captures = false;

    return ask(streams, stream, &captures) != OOMPH_OK || captures;
}

oomph_status_t oomph_streams_ask(oomph_streams_t *streams, bool *capture)
{
    oomph_status_t status = OOMPH_OK;

    oomph_streams_see_begun(streams);
    *capture = streams->beginning;
    for (const oomph_stream_state_t *s = streams->list;
         s != NULL && status == OOMPH_OK && !*capture; s = s->next)
        status = ask(streams, s, capture);
    return status;
}

bool oomph_streams_capture(oomph_streams_t *streams)
{
    bool capture = false;

    return oomph_streams_ask(streams, &capture) != OOMPH_OK || capture;
}
