/* plain.h - the allocator as two plain C functions, which oomph._C exports for
 * PyTorch's CUDAPluggableAllocator: process-wide, or behind a MemPool.
 */
#pragma once
#include "oomph.h"
#include "python/interpreter/beyond.h"

#include <sys/types.h>

#define OOMPH_EXPORTED __attribute__((visibility("default")))

// Gives NULL where there is no memory: the interface knows no error.
OOMPH_EXPORTED void *oomph_torch_malloc(ssize_t size, int device,
                                        oomph_stream_t stream);
OOMPH_EXPORTED void oomph_torch_free(void *block, ssize_t size, int device,
                                     oomph_stream_t stream);

// set_refusal_hook() of oomph._C.
extern PyMethodDef oomph_plain_methods[];
