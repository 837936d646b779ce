/* module.c - modules, libraries and kernels, as programs load that compile at run time.
 * Their code is not looked at: any name is found, and launches into nothing.
 */
#include "libcuda/execution/module.h"

#include "libcuda/base/slab.h"
#include "libcuda/execution/call.h"
#include "libcuda/objects/context.h"
#include "libcuda/session/config.h"
#include "libcuda/session/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 256, BLOCK_THREADS_MAX = 1024, SM_THREADS = 2048 };

struct CUfunc_st {
    char name[NAME_BYTES];
    CUmodule module;
    CUfunction next; // in the module
    int dynamic_shared_bytes;
};

struct CUmod_st {
    sim_object_t object;
    CUfunction functions;
};

static sim_slab_t modules = {.object_bytes = sizeof(struct CUmod_st)};

// A library is a module, a kernel is a function.
static CUmodule module_of(CUlibrary library)
{
    return (CUmodule)(void *)library;
}

static CUfunction function_of(CUkernel kernel)
{
    return (CUfunction)(void *)kernel;
}

static CUresult load(CUmodule *out)
{
    CUcontext context;
    CUresult result = sim_context_usable(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUmodule module = sim_slab_take(&modules);
    if (module == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->functions = NULL;
    *out = module;
    return CUDA_SUCCESS;
}

static void give_back(CUmodule module)
{
    CUfunction next;

    for (CUfunction function = module->functions; function != NULL; function = next) {
        next = function->next;
        free(function);
    }
    sim_slab_give(&modules, &module->object);
}

static CUresult check(CUmodule module)
{
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!sim_is_live(&module->object))
        return sim_misuse(CUDA_ERROR_INVALID_HANDLE, "module %p was unloaded",
                          (void *)module);
    return CUDA_SUCCESS;
}

static CUresult unload(CUmodule module)
{
    CUresult result = check(module);

    if (result == CUDA_SUCCESS)
        give_back(module);
    return result;
}

void sim_module_reset(void)
{
    CUmodule module;

    for (uint32_t i = 0; (module = sim_slab_next(&modules, &i)) != NULL;)
        give_back(module);
}

static CUresult find(CUfunction *out, CUmodule module, const char *name)
{
    CUresult result = check(module);

    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUfunction function = module->functions;
    while (function != NULL && strcmp(function->name, name) != 0)
        function = function->next;
    if (function == NULL) {
        function = calloc(1, sizeof *function);
        if (function == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        snprintf(function->name, sizeof function->name, "%s", name);
        function->module = module;
        function->next = module->functions;
        module->functions = function;
    }
    *out = function;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    return SIM_CALL(load(module), "%s", path ? path : "NULL");
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return SIM_CALL(load(module), "%p", image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                            CUjit_option *options, void **values)
{
    (void)options;
    (void)values;
    return SIM_CALL(load(module), "%p, %u", image, count);
}

CUresult cuModuleUnload(CUmodule module)
{
    return SIM_CALL(unload(module), "%p", (void *)module);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    return SIM_CALL(find(function, module, name), "%p, %s", (void *)module,
                    name ? name : "NULL");
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *addr, size_t *bytes, CUmodule module,
                              const char *name)
{
    (void)addr;
    (void)bytes;
    return SIM_CALL(CUDA_ERROR_NOT_FOUND, "%p, %s", (void *)module,
                    name ? name : "NULL");
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options,
                           void **values, unsigned count,
                           CUlibraryOption *library_options, void **library_values,
                           unsigned library_count)
{
    (void)options;
    (void)values;
    (void)library_options;
    (void)library_values;
    return SIM_CALL(load((CUmodule *)(void *)library), "%p, %u, %u", code, count,
                    library_count);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    return SIM_CALL(unload(module_of(library)), "%p", (void *)library);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return SIM_CALL(find((CUfunction *)(void *)kernel, module_of(library), name),
                    "%p, %s", (void *)library, name ? name : "NULL");
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    CUresult result = sim_enter_checked(__func__, module != NULL && library != NULL);

    if (result == CUDA_SUCCESS)
        *module = module_of(library);
    return sim_leave(result, "%p", (void *)library);
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CUresult result = sim_enter_checked(__func__, function != NULL && kernel != NULL);

    if (result == CUDA_SUCCESS)
        *function = function_of(kernel);
    return sim_leave(result, "%p", (void *)kernel);
}

// ---- attributes: those of a small kernel

static int attribute(const struct CUfunc_st *function, CUfunction_attribute name)
{
    switch (name) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        return BLOCK_THREADS_MAX;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        return 32;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        return sim_config.cc_major * 10 + sim_config.cc_minor;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        return function->dynamic_shared_bytes ? function->dynamic_shared_bytes : 49152;
    default:
        return 0;
    }
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute name, CUfunction function)
{
    CUresult result = sim_enter_checked(__func__, value != NULL && function != NULL);

    if (result == CUDA_SUCCESS)
        *value = attribute(function, name);
    return sim_leave(result, "%d, %p", (int)name, (void *)function);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute name, int value)
{
    CUresult result = sim_enter_checked(__func__, function != NULL);

    if (result == CUDA_SUCCESS &&
        name == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        function->dynamic_shared_bytes = value;
    return sim_leave(result, "%p, %d, %d", (void *)function, (int)name, value);
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    return SIM_CALL(CUDA_SUCCESS, "%p, %d", (void *)function, (int)config);
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    CUresult result = sim_enter_checked(__func__, module != NULL && function != NULL);

    if (result == CUDA_SUCCESS)
        *module = function->module;
    return sim_leave(result, "%p", (void *)function);
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
    CUresult result = sim_enter_checked(__func__, name != NULL && function != NULL);

    if (result == CUDA_SUCCESS)
        *name = function->name;
    return sim_leave(result, "%p", (void *)function);
}

const char *sim_function_name(CUfunction function)
{
    return function->name;
}

static CUresult occupancy(int *blocks, int block_threads)
{
    if (blocks == NULL || block_threads <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = SM_THREADS / block_threads;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                     int block_threads,
                                                     size_t shared_bytes)
{
    return SIM_CALL(occupancy(blocks, block_threads), "%p, %d, %zu", (void *)function,
                    block_threads, shared_bytes);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks,
                                                              CUfunction function,
                                                              int block_threads,
                                                              size_t shared_bytes,
                                                              unsigned flags)
{
    return SIM_CALL(occupancy(blocks, block_threads), "%p, %d, %zu, %u",
                    (void *)function, block_threads, shared_bytes, flags);
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function,
                                      const CUlaunchConfig *config)
{
    CUresult result = sim_enter_checked(__func__, clusters != NULL && config != NULL);

    if (result == CUDA_SUCCESS)
        *clusters = 16;
    return sim_leave(result, "%p", (void *)function);
}

CUresult
cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                       void *addr, const cuuint64_t *dims, const cuuint64_t *strides,
                       const cuuint32_t *box, const cuuint32_t *element_strides,
                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    (void)dims;
    (void)strides;
    (void)box;
    (void)element_strides;
    (void)interleave;
    (void)swizzle;
    (void)promotion;
    (void)fill;
    CUresult result = sim_enter(__func__);
    if (result == CUDA_SUCCESS && map == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        memset(map, 0, sizeof *map);
    return sim_leave(result, "%d, %u, %p", (int)type, rank, addr);
}
