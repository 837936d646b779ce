/* context.h - variants of calls on contexts that programs find by cuGetProcAddress()
 * alone: the header of this version does not declare them.
 */
#pragma once
#include "libcuda/base/cuda_api.h"

CUresult sim_ctx_get_device_of(CUdevice *device, CUcontext context);
CUresult sim_ctx_synchronize(CUcontext context);
