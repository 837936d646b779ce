/* cuda_work.h - the part of the driver table that is about work: streams, events,
 * copies, and waiting for them.
 */
#pragma once
#include "driver/driver.h"

// Members of the driver table, see driver.h.
oomph_status_t oomph_cuda_stream_id(int device, oomph_stream_t stream, uint64_t *id);
oomph_status_t oomph_cuda_stream_captures(int device, oomph_stream_t stream,
                                          bool *captures);
oomph_status_t oomph_cuda_stream_create(int device, oomph_stream_t *stream);
oomph_status_t oomph_cuda_event_create(int device, oomph_event_t *event);
oomph_status_t oomph_cuda_event_destroy(int device, oomph_event_t event);
oomph_status_t oomph_cuda_event_record(int device, oomph_event_t event,
                                       oomph_stream_t stream);
oomph_status_t oomph_cuda_event_record_all(int device, oomph_event_t event);
oomph_status_t oomph_cuda_stream_wait(int device, oomph_stream_t stream,
                                      oomph_event_t event);
oomph_status_t oomph_cuda_event_passed(int device, oomph_event_t event, bool *passed);
oomph_status_t oomph_cuda_event_wait(int device, oomph_event_t event);
oomph_status_t oomph_cuda_drain(int device);
oomph_status_t oomph_cuda_copy(int device, oomph_addr_t to, oomph_addr_t from,
                               size_t bytes, oomph_stream_t stream);
oomph_status_t oomph_cuda_fill(int device, oomph_addr_t addr, size_t bytes,
                               oomph_stream_t stream);
oomph_status_t oomph_cuda_copy_all(int device, const oomph_copy_t *copies,
                                   size_t count);
oomph_status_t oomph_cuda_time_copy(int device, oomph_addr_t to, oomph_addr_t from,
                                    size_t bytes, int count, int64_t *ns);
oomph_status_t oomph_cuda_trim(int device);
