/* cuda_api.h - <cuda.h> as a driver sees it: every version of every call under its own
 * name, and exported.
 */
#pragma once
#define __CUDA_API_VERSION_INTERNAL // no renaming of cuMemAlloc to cuMemAlloc_v2
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

// This is a driver of CUDA 13, whatever header it is built with.
#if CUDA_VERSION < 13000
enum {
    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER = 36,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141,
    CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 145,
};
#endif
