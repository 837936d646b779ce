/* cuda_api.h - <cuda.h> as a driver sees it: every version of every call under its own
 * name, and exported.
 */
#pragma once
#define __CUDA_API_VERSION_INTERNAL // no renaming of cuMemAlloc to cuMemAlloc_v2
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
