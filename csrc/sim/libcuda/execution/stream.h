/* stream.h - the streams that handles name, and the end of streams. The caller holds
 * the driver's lock.
 */
#pragma once
#include "libcuda/objects/stream.h"

// The stream that a handle names: 0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD or a
// stream. Errors: INVALID_CONTEXT, INVALID_HANDLE, or the error that has broken the
// context.
CUresult sim_stream_find(CUstream handle, CUstream *stream);

// The same, even if an error has broken the context.
CUresult sim_stream_find_any(CUstream handle, CUstream *stream);

void sim_stream_destroy_all(CUcontext context);
