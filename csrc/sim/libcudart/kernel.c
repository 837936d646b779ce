/* kernel.c - kernels: registered by every library that nvcc built, while it is loaded,
 * and launched into nothing.
 *
 * They are found by the address of the host function that stands for them, in a hash
 * table with chains: each launch looks one up, without a lock, as kernels are only ever
 * added.
 */
#include "rt.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" // most of what compilers pass

enum {
    BUCKETS = 1 << 17, // PyTorch registers about 200,000 kernels
    CONFIGURATIONS_MAX = 8,
    SM_THREADS = 2048,
    BLOCK_THREADS_MAX = 1024,
};

// A cudaKernel_t points to one of these.
typedef struct kernel {
    const void *host; // the function of the host that stands for it
    const char *name;
    struct kernel *next; // in its bucket
} kernel_t;

// The <<<...>>> of a launch, between the compiler's two calls.
typedef struct configuration {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
} configuration_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards writes to `buckets`
static kernel_t *_Atomic buckets[BUCKETS];
static __thread configuration_t configurations[CONFIGURATIONS_MAX];
static __thread int configuration_count;

// No header for C declares what the compiler's code calls.
#pragma GCC visibility push(default)
void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device,
                            const char *name, int thread_limit, void *thread_id,
                            void *block_id, void *block, void *grid, int *warp_size);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name,
                       int is_extern, size_t bytes, int is_constant, int is_global);
void __cudaRegisterManagedVar(void **handle, void **host, char *device,
                              const char *name, int is_extern, size_t bytes,
                              int is_constant, int is_global);
void __cudaRegisterHostVar(void **handle, const char *name, char *host, size_t bytes);
void __cudaRegisterUnifiedTable(void **handle, void *table, void *more);
char __cudaInitModule(void **handle);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes,
                                       void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                               void **arguments, size_t shared_bytes,
                               cudaStream_t stream);
#pragma GCC visibility pop

// ---- registration

static size_t bucket_of(const void *host)
{
    return (uint64_t)(uintptr_t)host / 16 * 0x9E3779B97F4A7C15u >> 47;
}

static kernel_t *find(const void *host)
{
    kernel_t *kernel = buckets[bucket_of(host)];

    while (kernel != NULL && kernel->host != host)
        kernel = kernel->next;
    return kernel;
}

void **__cudaRegisterFatBinary(void *binary)
{
    void **handle = malloc(sizeof *handle);

    if (handle != NULL)
        *handle = binary;
    return handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
}

void __cudaUnregisterFatBinary(void **handle)
{
    free(handle);
}

void __cudaRegisterFunction(void **handle, const char *host, char *device,
                            const char *name, int thread_limit, void *thread_id,
                            void *block_id, void *block, void *grid, int *warp_size)
{
    kernel_t *kernel = malloc(sizeof *kernel);

    if (kernel == NULL)
        return; // its launch will fail: it is not known
    pthread_mutex_lock(&lock);
    *kernel = (kernel_t){.host = host, .name = name, .next = buckets[bucket_of(host)]};
    buckets[bucket_of(host)] = kernel;
    pthread_mutex_unlock(&lock);
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name,
                       int is_extern, size_t bytes, int is_constant, int is_global)
{
}

void __cudaRegisterManagedVar(void **handle, void **host, char *device,
                              const char *name, int is_extern, size_t bytes,
                              int is_constant, int is_global)
{
}

void __cudaRegisterHostVar(void **handle, const char *name, char *host, size_t bytes)
{
}

void __cudaRegisterUnifiedTable(void **handle, void *table, void *more)
{
}

char __cudaInitModule(void **handle)
{
    return 1;
}

// ---- launches

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     struct CUstream_st *stream)
{
    if (configuration_count == CONFIGURATIONS_MAX)
        return 1;
    configurations[configuration_count++] =
        (configuration_t){grid, block, shared_bytes, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes,
                                       void *stream)
{
    if (configuration_count == 0)
        return rt_error(cudaErrorMissingConfiguration);
    const configuration_t *last = &configurations[--configuration_count];
    *grid = last->grid;
    *block = last->block;
    *shared_bytes = last->shared_bytes;
    *(cudaStream_t *)stream = last->stream;
    return cudaSuccess;
}

static cudaError_t launch(const kernel_t *kernel, dim3 grid, dim3 block,
                          cudaStream_t stream)
{
    if (kernel == NULL)
        return rt_error(cudaErrorInvalidDeviceFunction);
    return RT_BOUND((CUresult)oomph_sim_launch_kernel(
        kernel->name, (uint64_t)grid.x * grid.y * grid.z, block.x * block.y * block.z,
        stream));
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    *kernel = (cudaKernel_t)(void *)find(host);
    return rt_error(*kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    return __cudaGetKernel(kernel, host);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                               void **arguments, size_t shared_bytes,
                               cudaStream_t stream)
{
    return launch((const kernel_t *)(const void *)kernel, grid, block, stream);
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream)
{
    return launch(find(host), grid, block, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block,
                                        void **arguments, size_t shared_bytes,
                                        cudaStream_t stream)
{
    return cudaLaunchKernel(host, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host,
                                void **arguments)
{
    if (config == NULL)
        return rt_error(cudaErrorInvalidValue);
    return launch(find(host), config->gridDim, config->blockDim, config->stream);
}

// ---- attributes: those of a small kernel

// The architecture whose code runs on a device: the nearest that PyTorch's wheels are
// built for, those before 75 with CUDA 12 alone. Libraries refuse to launch for others.
static int architecture(int device)
{
    static const int built[] = {120, 100, 90, 86, 80, 75, 70, 60, 50};
    int major = 0, minor = 0;

    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    for (size_t i = 0; i < sizeof built / sizeof built[0]; i++)
        if (built[i] <= major * 10 + minor)
            return built[i];
    return major * 10 + minor;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes,
                                  const void *host)
{
    if (attributes == NULL)
        return rt_error(cudaErrorInvalidValue);
    if (find(host) == NULL)
        return rt_error(cudaErrorInvalidDeviceFunction);
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = BLOCK_THREADS_MAX;
    attributes->numRegs = 32;
    attributes->binaryVersion = attributes->ptxVersion = architecture(rt_device());
    attributes->maxDynamicSharedSizeBytes = 49152;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute,
                                 int value)
{
    return cudaSuccess;
}

cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache config)
{
    return cudaSuccess;
}

cudaError_t cudaFuncGetName(const char **name, const void *host)
{
    const kernel_t *kernel = find(host);

    if (kernel == NULL)
        return rt_error(cudaErrorInvalidDeviceFunction);
    *name = kernel->name;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks,
                                                                   const void *host,
                                                                   int block_threads,
                                                                   size_t shared_bytes,
                                                                   unsigned flags)
{
    if (blocks == NULL || block_threads <= 0)
        return rt_error(cudaErrorInvalidValue);
    *blocks = SM_THREADS / block_threads;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host,
                                                          int block_threads,
                                                          size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks, host, block_threads, shared_bytes, cudaOccupancyDefault);
}
