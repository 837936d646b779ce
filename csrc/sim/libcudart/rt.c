/* rt.c - what each thread has: a device, and the last error. */
#include "rt.h"

#include <pthread.h>

enum { DEVICES_MAX = 64 };

static __thread cudaError_t last_error;
static __thread int chosen_device;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards `contexts`
static CUcontext contexts[DEVICES_MAX];                  // retained for ever
static _Atomic bool is_started;

cudaError_t rt_error(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

cudaError_t rt_result(CUresult result)
{
    return rt_error((cudaError_t)result);
}

static CUresult start(void)
{
    if (is_started)
        return CUDA_SUCCESS;
    CUresult result = cuInit(0);
    is_started = result == CUDA_SUCCESS;
    return result;
}

bool rt_start(void)
{
    return rt_result(start()) == cudaSuccess;
}

CUresult rt_context(int device, CUcontext *context)
{
    CUresult result = start();

    if (result != CUDA_SUCCESS)
        return result;
    if (device < 0 || device >= DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (contexts[device] == NULL)
        result = cuDevicePrimaryCtxRetain(&contexts[device], device);
    *context = contexts[device];
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult make_current(int device)
{
    CUcontext context;
    CUresult result = rt_context(device, &context);

    return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

bool rt_bind(void)
{
    return oomph_sim_current_device() >= 0 ||
           rt_result(make_current(chosen_device)) == cudaSuccess;
}

int rt_device(void)
{
    int device = oomph_sim_current_device();

    return device >= 0 ? device : chosen_device;
}

cudaError_t cudaGetDevice(int *device)
{
    if (device == NULL)
        return rt_error(cudaErrorInvalidValue);
    *device = rt_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (oomph_sim_current_device() == device)
        return cudaSuccess;
    CUresult result = make_current(device);
    if (result == CUDA_SUCCESS)
        chosen_device = device;
    return rt_result(result);
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
    CUcontext context;

    (void)device_flags;
    (void)flags;
    return rt_result(rt_context(device, &context));
}

cudaError_t cudaDeviceReset(void)
{
    return RT_BOUND(cuCtxSynchronize());
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

cudaError_t oomph_sim_rt_unsupported(const char *function)
{
    oomph_sim_note_unsupported(function);
    return rt_error(cudaErrorNotSupported);
}
