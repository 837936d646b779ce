/* rt.h - the simulated runtime: a thin layer over the simulated driver, as the real one
 * is over the real one. It adds devices that become current by themselves, the last
 * error of each thread, and kernels that are known by host functions.
 */
#pragma once
#include "runtime.h"

#include <stdbool.h>

#pragma GCC visibility push(default)
#include <cuda.h>
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

// What a call returns for a result of the driver: the numbers are the same. Remembers
// failures as the thread's last error.
cudaError_t rt_result(CUresult result);

// As rt_result(), for an error that the runtime itself has found.
cudaError_t rt_error(cudaError_t error);

// Initialises the driver. False: it cannot, and the thread's last error is why.
bool rt_start(void);

// Makes a context current to the thread, if none is: of the device that it chose, or of
// device 0. For calls that work on the current device. False: it cannot, and the
// thread's last error is why.
bool rt_bind(void);

// What a call of the driver gives, once that is initialised, or works on the current
// device. Macros, as the call is made only then.
#define RT_STARTED(call) (rt_start() ? rt_result(call) : cudaPeekAtLastError())
#define RT_BOUND(call) (rt_bind() ? rt_result(call) : cudaPeekAtLastError())

// The device that is current to the thread, whether or not it is in use yet.
int rt_device(void);

// The primary context of a device, in use from now on.
CUresult rt_context(int device, CUcontext *context);

// For the generated stubs: records that a call of the runtime is not simulated, and
// fails it.
cudaError_t oomph_sim_rt_unsupported(const char *function);

static inline CUdeviceptr rt_address(const void *place)
{
    return (CUdeviceptr)(uintptr_t)place;
}
